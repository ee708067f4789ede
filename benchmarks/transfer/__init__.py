"""What it costs to bring a bundle to one device and to many, beside plain ways to move bytes."""
