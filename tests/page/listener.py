# SPDX-License-Identifier: Apache-2.0
"""A server that pages may leave as they like."""

import http.server
import sys


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
