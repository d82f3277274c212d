"""THE SIMULATOR: the gateway's own decision core before modelled engines, on a virtual clock.

`simulation` is the clock and what happens at it; `command` is `kvgate sim`, the only module here that meets
files, processes and the wall clock.
"""
