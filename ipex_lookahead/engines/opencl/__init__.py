"""The OpenCL engine: Intel GPUs with nothing but the driver, and the native core's bits."""
