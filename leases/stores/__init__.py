"""One module per lease container. Vendor SDKs live here and nowhere else in this package."""
