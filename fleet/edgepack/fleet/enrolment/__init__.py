"""Taking devices in: certificates, access rules, and the folder a device is set up from."""
