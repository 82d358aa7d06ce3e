"""The benchmark measures what it says, and says when it could not."""
