"""Who calls: Signature Version 4, session tokens, and the bearer tokens made of them."""
