"""What the kernel emitters know of a CPU's vector unit, and how they reach memory and count."""
