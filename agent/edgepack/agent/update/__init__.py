"""An update on the device, from the offer to the commit: life cycle, journal, actions."""
