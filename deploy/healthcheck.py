"""The image's health check: 0 when the public port answers /livez, over TLS where the environment says so."""

import http.client
import os
import ssl
import sys

port = int(os.environ.get("KVGATE_PORT", "8000"))
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
if any(f"KVGATE_{name}" in os.environ for name in ("TLS_CERT", "SSL_CERTFILE", "TLS_CERT_PATH")):
    # The certificate is for the name that clients use; here only the answer counts.
    unchecked = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=unchecked)
connection.request("GET", "/livez")
sys.exit(connection.getresponse().status != 200)
