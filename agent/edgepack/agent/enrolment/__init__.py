"""Who a device is: the package that it is set up from, its key, its certificate and the next."""
