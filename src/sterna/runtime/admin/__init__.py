"""The admin port: HTTP, its pages, metrics, and orders to move clients."""
