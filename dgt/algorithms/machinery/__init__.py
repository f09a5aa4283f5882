"""What the algorithms share, apart from any one of them."""
