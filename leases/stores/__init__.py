"""One module or package per lease container. Vendor SDKs are imported here and nowhere else in this package."""
