"""The dashboard on the admin port: its page, the pictures of the network it draws, and people's logins."""
