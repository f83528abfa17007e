# SPDX-License-Identifier: Apache-2.0
"""Certificates that sign themselves, made by the openssl of the machine."""

import shutil
import ssl
import subprocess

import pytest

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")


def run(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Certificate:
    """In folder: NAME.pem and NAME.key, for localhost and 127.0.0.1."""

    def __init__(self, folder, name="server", days=30):
        self.path, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        request = folder / f"{name}.csr"
        names = folder / "names"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        run("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", self.key, "-out", request, "-subj", f"/CN={name}")
        run("x509", "-req", "-in", request, "-signkey", self.key, "-days", days, "-out", self.path,
            "-extfile", names)

    def flags(self):
        return {"tls_cert": self.path, "tls_key": self.key}

    def context(self):
        """Of a client that trusts this certificate alone."""
        return ssl.create_default_context(cafile=self.path)

    def der(self):
        return ssl.PEM_cert_to_DER_cert(self.path.read_text())

    def copy_over(self, other):
        """As a renewal does it: the files of the other become these."""
        for source, target in ((self.path, other.path), (self.key, other.key)):
            fresh = target.with_suffix(".fresh")
            shutil.copy(source, fresh)
            fresh.replace(target)
