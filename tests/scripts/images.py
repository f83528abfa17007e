#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves the images without a container engine: executes the steps of deploy/Dockerfile and
deploy/Dockerfile.cuda in folders, starts what they made as an engine would, and looks at it.
Usage (as root): tests/scripts/images.py FOLDER [DOCKERFILE...]
FOLDER keeps a minimal Debian from run to run, and the output of the RUN steps (*.log)."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from dockerfile import BOUND, Builder, Context, Fault, Image, bind, enter, numbers

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = [ROOT / "deploy/Dockerfile", ROOT / "deploy/Dockerfile.cuda"]
MODEL = ROOT / "models/regla-books-7.7m"
START_SECONDS = 300  # ten times what a laden machine takes
STOP_SECONDS = 60  # as the documents say: --stop-timeout 60
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The minimal Debian, made once; whole, or not there. Then what makes an image's "slim", keeps no packages
# of apt's, and names the archives that the image names.
DEBIAN = f"""set -e
. {ROOT}/tests/scripts/system.sh
if [ ! -e "$1" ]; then
    rm -rf "$1.new"
    make_system "$1.new"
    for folder in doc info lintian linda locale man; do
        echo "path-exclude /usr/share/$folder/*" >>"$1.new/etc/dpkg/dpkg.cfg.d/docker"
        rm -rf "$1.new/usr/share/$folder"/*
    done
    cat >"$1.new/etc/apt/apt.conf.d/docker-clean" <<'APT'
APT::Keep-Downloaded-Packages "false";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT
    cat >"$1.new/etc/apt/sources.list" <<'APT'
deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian bookworm-updates main
deb http://deb.debian.org/debian-security bookworm-security main
APT
    chroot "$1.new" apt-get clean
    rm -rf "$1.new"/var/lib/apt/lists/* "$1.new"/var/cache/apt/*.bin
    mv "$1.new" "$1"
fi
make_system "$1"
"""


def say(*words):
    print("==", *words, flush=True)


def lacking(dockerfile):
    """What this machine lacks for the proof of a Dockerfile, or None."""
    if os.geteuid() != 0:
        return "needs root, for mounts and namespaces"
    names = ["debootstrap", "unshare", "nsenter", "setpriv", "curl", "ip"]
    missing = [name for name in names + ["nvcc"] * (Path(dockerfile).suffix == ".cuda")
               if not shutil.which(name)]
    return f"not here: {' '.join(missing)}" if missing else None


def output(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)


def size_of(folder):
    return int(output("du", "-sxB1", folder, check=True).stdout.split()[0])


# ---- what stands in for images that cannot be pulled ----

def base_image(name, folder, kept):
    if name == "debian:bookworm-slim":
        debian = kept / "bookworm"
        made = output(*BOUND, "unshare", "--mount", "bash", "-c", DEBIAN, "bash", debian)
        if made.returncode:
            raise Fault(f"debootstrap: {made.stderr}")
        print(f"   {name}: here debootstrap's minimal bookworm, without documents, in its place", flush=True)
        return Image(debian, {"PATH": PATH}, command=["bash"])
    if found := re.fullmatch(r"nvidia/cuda:(\d+\.\d+)\.\d+-devel-\w+[.\d]+", name):
        toolkit = Path(shutil.which("nvcc")).resolve().parents[1]
        version = re.search(r"release ([\d.]+), V([\d.]+)", output("nvcc", "--version").stdout)
        if version[1] != found[1]:
            raise Fault(f"{name}: this machine's nvcc is of {version[1]}")
        (folder / "usr/local").mkdir(parents=True)
        (folder / f"usr/local/cuda-{version[1]}").symlink_to(toolkit)
        print(f"   {name}: here this machine's {toolkit} alone, nvcc {version[2]}, in its place", flush=True)
        return Image(folder, {}, stands_in=True)
    raise Fault(f"{name}: nothing here stands in for it")


# ---- a container ----

class Container:
    """An image that runs: its own mounts, processes and network; nothing of it is writable but its
    volumes; its user has no rights. Stricter than an engine: no /tmp, no /dev/shm to write to."""

    def __init__(self, image, folder, command=None, environment=None):
        self.image, self.folder = image, folder
        self.environment = image.environment | (environment or {})
        self.log = folder / "log"
        mounts = [*self.mounts(image, folder)]
        script = enter(image, mounts, image.entrypoint + (command or image.command), self.environment,
                       image.user)
        with self.log.open("w") as log:
            self.outer = subprocess.Popen(
                [*BOUND, "unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "bash", "-c", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def mounts(self, image, folder):
        """Commands of bash; the folders that they mount over are made here."""
        root = shlex.quote(str(image.root))
        (image.root / "model").mkdir(exist_ok=True)
        yield "ip link set lo up"
        yield from bind(image.root, image.root, "ro")
        yield f"mount -t proc proc {root}/proc"
        yield f"mount --rbind /sys {root}/sys; mount -o remount,bind,ro {root}/sys"
        yield f"mount -t tmpfs -o size=64k,mode=755 tmpfs {root}/dev"
        for name in DEVICES:
            yield f": >{root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}"
        yield f"ln -s /proc/self/fd {root}/dev/fd; mount -o remount,ro {root}/dev"
        yield from bind(MODEL, image.root / "model", "ro")
        for number, volume in enumerate(image.volumes):
            # A new volume begins as what the image has there, its owner and mode too.
            place = folder / f"volume{number}"
            if not place.exists():
                subprocess.run(["cp", "-a", image.inside(volume), place], check=True)
            yield from bind(place, image.inside(volume))

    def pid(self):
        """The server's process here: the child of the process that keeps its namespace."""
        pid = self.outer.pid
        for _ in range(2):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                return None
            pid = int(children[0])
        return pid

    def inside(self, *command, user=None):
        """Runs a command in it, as `docker exec` does; the user is the image's."""
        uid, gid = numbers(user or self.image.user)
        values = [f"{name}={value}" for name, value in self.environment.items()]
        return output("env", "-i", *values, shutil.which("nsenter"), "-t", self.pid(), "--mount", "--pid",
                      "--net", "--root", "--wd", "-S", uid, "-G", gid, *command, timeout=60)

    def curl(self, path, *more):
        """From its network, by this machine's curl."""
        port = self.environment["REGLA_PORT"]
        return output("nsenter", "-t", self.pid(), "--net", "curl", "-sS", "--max-time", "30", *more,
                      f"http://127.0.0.1:{port}{path}").stdout

    def ready(self):
        """Waits until the server serves; before that there may be no process of it to enter."""
        deadline, reply = time.monotonic() + START_SECONDS, ""
        while '"ready"' not in reply:
            expect("ready", self.wait(0.1) is None and time.monotonic() < deadline, reply,
                   self.log.read_text())
            reply = self.curl("/ready") if self.pid() else ""

    def wait(self, seconds):
        """Its exit status, None: it runs on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.outer.wait(seconds)

    def stop(self, number):
        os.kill(self.pid(), number)
        return self.wait(STOP_SECONDS)

    def end(self):
        """Whatever it does, also when it was stopped before."""
        self.outer.kill()
        self.outer.wait()


# ---- what an image must be ----

def expect(what, holds, *evidence):
    if not holds:
        raise Fault(f"{what}: {' '.join(map(str, evidence))}")


def show_libraries(container):
    ldd = container.inside("ldd", "/usr/local/bin/regla").stdout
    names = sorted(line.split()[0] for line in ldd.splitlines())
    expect("libraries", names and "not found" not in ldd and not re.search("libcuda|libcublas", ldd), ldd)
    say(f"libraries ({len(names)}):", *names)


def show_sizes(image, base):
    binary = (image.root / "usr/local/bin/regla").stat().st_size
    whole, under = size_of(image.root), size_of(base.root)
    say(f"ships {(whole - under) / 2**20:.1f} MiB over the base ({binary / 2**20:.1f} MiB of them the "
        f"program); whole {whole / 2**20:.0f} MiB, base {under / 2**20:.0f} MiB (du)")


def check_rights(container):
    image = container.image
    status = Path(f"/proc/{container.pid()}/status").read_text()
    field = {name: value.split() for name, value in re.findall(r"(\w+):\t(.*)", status)}
    uid, gid = numbers(image.user)
    expect("user", uid != 0 and field["Uid"] == [str(uid)] * 4 and field["Gid"] == [str(gid)] * 4, status)
    expect("rights", int(field["CapEff"][0], 16) == 0 and field["NoNewPrivs"] == ["1"]
           and field["Groups"] == [], status)
    say(f"process {field['NSpid'][-1]} of its container runs as {uid}:{gid}, no groups, no capabilities")
    found = container.inside("find", "/", "-path", "/proc", "-prune", "-o", "-writable", "!", "-type", "l",
                             "-print").stdout.split()
    found = sorted(set(found) - {f"/dev/{name}" for name in DEVICES})
    expect("writable", all(place.startswith(tuple(image.volumes)) for place in found)
           and set(image.volumes) <= set(found), found)
    refused = container.inside("touch", "/usr/local/bin/new", user="0:0").stderr
    expect("read-only", "Read-only file system" in refused, refused)
    say("writable for it, of all files but devices and /proc:", *found)
    say("the root is read-only for root too:", refused.strip())


def check_service(container):
    container.ready()
    say("curl /health:", container.curl("/health", "-w", " (%{http_code})"))
    body = {"prompt": "It was a dark night, and", "max_tokens": 16, "temperature": 0}
    reply = container.curl("/v1/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body))
    expect("completion", '"finish_reason":"length"' in reply, reply)
    say("curl /v1/completions:", reply)
    found = re.search(r'"device +([^"]*)"', container.log.read_text())
    expect("device", found and found[1].startswith("cpu"), container.log.read_text())
    say("--device auto takes", found[1])
    started = time.monotonic()
    check = container.inside(*container.image.check)
    expect("health check", check.returncode == 0, check)
    say(f"health check: status 0 after {time.monotonic() - started:.2f} s,", container.image.check_flags)


def check_stop(container):
    started = time.monotonic()
    status = container.stop(getattr(signal, container.image.stop_signal))
    expect("stop", status == 0, f"status {status}", container.log.read_text())
    say(f"{container.image.stop_signal}: status 0 after {time.monotonic() - started:.2f} s")


def check_cuda(image, folder, builder):
    """What is of the GPU's image alone, as far as a machine without a GPU can say."""
    with running(image, folder / "no-gpu", image.command + ["--device", "cuda"]) as container:
        status, log = container.wait(60), container.log.read_text()
        expect("--device cuda", status not in (None, 0) and "no device that can be used" in log, status, log)
        say(f"--device cuda without a GPU: status {status}:", log.strip())
    flags = (builder.images["build"].root / "src/build/cuda/compile_commands.json").read_text()
    codes = sorted(set(re.findall(r"code=\[([^\]]*)\]", flags)))
    expect("architectures", codes == ["compute_90", "sm_80", "sm_90"], codes)
    say("the kernels are compiled for", *codes)
    with running(builder.image("cublaslt"), folder / "cublaslt") as container:
        container.ready()
        found = container.inside("sh", "-c", "LD_PRELOAD=libcublasLt.so.13 ldd /usr/local/bin/regla")
        library = re.search(r"libcublasLt\S* => /\S+", found.stdout)
        expect("libcublasLt", library and "not found" not in found.stdout, found)
        say("--target cublaslt finds by its name alone:", library[0])


@contextlib.contextmanager
def running(image, folder, command=None):
    folder.mkdir()
    container = Container(image, folder, command)
    try:
        yield container
    finally:
        container.end()


def prove(dockerfile, kept):
    """Raises a Fault. What it made is gone afterwards, but for the minimal Debian and the log."""
    kept.mkdir(parents=True, exist_ok=True)
    work = kept / f"{dockerfile.name}.work"
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean(work)  # of a run that was killed
        work.mkdir()
        try:
            prove_in(dockerfile, kept, work)
        finally:
            clean(work)


def prove_in(dockerfile, kept, work):
    say(f"{dockerfile.name}: its steps, in folders")
    with (kept / f"{dockerfile.name}.log").open("w") as log:
        builder = Builder(dockerfile, Context(ROOT, dockerfile), work,
                          lambda name, folder: base_image(name, folder, kept), log)
        image = builder.image()
        show_sizes(image, builder.images["debian:bookworm-slim"])
        say("environment:", *(f"{name}={value}" for name, value in image.environment.items()))
        say("command:", *image.entrypoint, *image.command, "- ports", *image.ports, "- volumes",
            *image.volumes)
        say("started in namespaces, as by docker run --read-only --cap-drop ALL "
            "--security-opt no-new-privileges")
        with running(image, work / "run") as container:
            check_service(container)
            check_rights(container)
            show_libraries(container)
            check_stop(container)
        if dockerfile.suffix == ".cuda":
            check_cuda(image, work, builder)


def clean(folder):
    """Nothing is mounted below it here: all mounts are in namespaces that have ended."""
    if folder.exists():
        mounted = [line for line in Path("/proc/self/mounts").read_text().splitlines()
                   if line.split()[1].startswith(f"{folder}/")]
        expect("mounts left", not mounted, mounted)
        shutil.rmtree(folder)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    kept = Path(sys.argv[1]).resolve()
    dockerfiles = [Path(name).resolve() for name in sys.argv[2:]] or DOCKERFILES
    if lacks := next(filter(None, map(lacking, dockerfiles)), None):
        print(f"images: {lacks}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for dockerfile in dockerfiles:
        try:
            prove(dockerfile, kept)
        except Fault as fault:
            print(f"images: {dockerfile.name}: {fault}", file=sys.stderr)
            failed += 1
    print(f"images: {len(dockerfiles) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
