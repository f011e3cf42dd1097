"""Memory: what is kept though nobody needs it."""
