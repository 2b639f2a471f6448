"""One module or package per lease store. Vendor SDKs are imported here and nowhere else in this package."""
