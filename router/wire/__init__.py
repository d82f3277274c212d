"""WHAT THE BYTES SAY: HTTP heads, request bodies, event streams, usage. Nothing is sent from here."""
