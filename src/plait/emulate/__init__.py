"""The test bed: a cluster of network namespaces on one machine, real packets between timed devices."""
