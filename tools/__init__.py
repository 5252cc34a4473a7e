"""Command line tools and the compile driver."""
