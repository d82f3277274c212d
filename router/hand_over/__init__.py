"""How a prompt that one engine has computed reaches the engine that decodes it: one file per protocol.

Pure: bodies and header lines in, bodies and header lines out. Who is asked, and when, is `router.legs`.
"""
