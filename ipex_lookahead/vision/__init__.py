"""Image files to pixels, patches and features: Pillow in a process with limits, and towers in the native core."""
