# SPDX-License-Identifier: Apache-2.0
"""Builds in folders what a Dockerfile describes, where there is no container engine. Needs root.

It knows what the files in deploy/ use and refuses everything else, so that nothing is left out unseen.
Each stage is a folder; RUN enters it in mount and process namespaces of its own, so that whatever ends
this program also ends its commands and their mounts. Networks are the machine's."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

FLAGS = {"FROM": (), "RUN": ("mount",), "COPY": ("from", "chown"), "ENV": (), "ARG": (), "WORKDIR": (),
         "USER": (), "EXPOSE": (), "VOLUME": (), "ENTRYPOINT": (), "CMD": (), "STOPSIGNAL": (),
         "LABEL": (), "HEALTHCHECK": ("interval", "timeout", "start-period", "retries")}
# How a program is started that ends when this one does: the outer process of its namespace is killed.
BOUND = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]


class Fault(Exception):
    """A Dockerfile that is wrong or unknown here, or a step that failed."""


@dataclass
class Step:
    where: str
    name: str
    flags: list  # of (name, value)
    text: str


@dataclass
class Image:
    """A folder and what its last stage says of how it is run."""
    root: Path
    environment: dict
    user: str = "0:0"
    folder: str = "/"
    entrypoint: list = field(default_factory=list)
    command: list = field(default_factory=list)
    volumes: list = field(default_factory=list)
    ports: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)
    check: list = field(default_factory=list)
    check_flags: dict = field(default_factory=dict)
    stop_signal: str = "SIGTERM"
    stands_in: bool = False  # links that lead out of it are meant

    def inside(self, path):
        """Where a path of the image is on this machine."""
        found = (self.root / str(path).lstrip("/")).resolve()
        if not self.stands_in and not found.is_relative_to(self.root):
            raise Fault(f"{path}: a link that leads out of {self.root}")
        return found


def parse(path):
    """Its steps, comments and continued lines resolved."""
    steps, text, first = [], "", 0
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if re.match(r"#\s*(syntax|escape|check)\s*=", line) and not steps:
            raise Fault(f"{path}:{number}: directives are not known here: {line}")
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first if text else number
        text += line.rstrip().removesuffix("\\")
        if not line.rstrip().endswith("\\"):
            steps.append(step_of(f"{Path(path).name}:{first}", text.strip()))
            text = ""
    if text:
        raise Fault(f"{path}: the last line is continued")
    return steps


def step_of(where, text):
    name, _, rest = text.partition(" ")
    name, rest, flags = name.upper(), rest.strip(), []
    if name not in FLAGS:
        raise Fault(f"{where}: expected one of {' '.join(FLAGS)}, got {name}")
    while found := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
        if found[1] not in FLAGS[name]:
            raise Fault(f"{where}: {name} --{found[1]} is not known here")
        flags.append((found[1], found[2]))
        rest = rest[found.end():]
    if not rest or rest.startswith("--") or (name in ("RUN", "COPY") and "<<" in rest):
        raise Fault(f"{where}: {name} is not known here in this form: {rest}")
    return Step(where, name, flags, rest)


def arguments(text):
    """The exec form, or the shell's."""
    with contextlib.suppress(ValueError):
        words = json.loads(text)
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            return words
    if text.startswith("["):
        raise Fault(f"expected a list of strings in JSON, got {text}")
    return ["/bin/sh", "-c", text]


def expand(text, variables):
    """$NAME, ${NAME} and ${NAME:-default}. What has no value is a mistake."""
    def value(found):
        name = found[1] or found[2]
        if not variables.get(name) and found[3] is not None:
            return found[3]
        if name not in variables:
            raise Fault(f"${name} has no value")
        return variables[name]
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})", value, text)


def pairs(text, variables):
    """NAME=value NAME="value"..."""
    words = [word.partition("=") for word in shlex.split(text)]
    if not all(name and equals for name, equals, _ in words):
        raise Fault(f"expected NAME=value, got {text}")
    return {name: expand(value, variables) for name, _, value in words}


class Context:
    """A folder's files, but those that .dockerignore takes out, or the Dockerfile's own such file."""

    def __init__(self, root, dockerfile):
        self.root, self.rules = Path(root).resolve(), []
        own = Path(f"{dockerfile}.dockerignore")
        ignored = own if own.exists() else self.root / ".dockerignore"
        for line in ignored.read_text().splitlines():
            line = line.strip()
            if line and not line.startswith("#"):
                pattern = re.escape(line.removeprefix("!").strip("/")).replace(r"\*\*/", "(?:.*/)?")
                pattern = pattern.replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
                self.rules.append((line.startswith("!"), re.compile(pattern)))

    def kept(self, path):
        """A rule is of a path and of what is below it; the last one counts."""
        path, kept = Path(os.path.normpath(self.root / path)).relative_to(self.root), True
        names = [str(path), *map(str, path.parents)]
        for keeps, pattern in self.rules:
            if any(pattern.fullmatch(name) for name in names):
                kept = keeps
        return kept


def copy_files(source, target, owner, kept):
    """A file, or what a folder holds, as COPY does: (files, bytes)."""
    count = size = 0
    if source.is_dir():
        found = ((Path(folder), name) for folder, folders, files in os.walk(source)
                 for name in files + [link for link in folders if (Path(folder) / link).is_symlink()])
        work = [(folder / name, target / (folder / name).relative_to(source)) for folder, name in found]
    else:
        work = [(source, target)]
    for old, new in work:
        if kept(old):
            make_folder(new.parent, owner)
            shutil.copy2(old, new, follow_symlinks=False)
            os.chown(new, *owner, follow_symlinks=False)
            count, size = count + 1, size + new.lstat().st_size
    return count, size


def make_folder(path, owner=(0, 0)):
    if not path.is_dir():
        make_folder(path.parent, owner)
        path.mkdir(mode=0o755)
        os.chown(path, *owner)


def numbers(user):
    if not re.fullmatch(r"\d+:\d+", user):
        raise Fault(f"expected a user and a group as numbers, got {user}")
    return tuple(map(int, user.split(":")))


def bind(source, target, *options):
    """Commands that show a folder or a file of this machine at another place."""
    source, target = shlex.quote(str(source)), shlex.quote(str(target))
    yield f"mount --bind {source} {target}"
    if options:
        yield f"mount -o remount,bind,{','.join(options)} {target}"


def enter(image, mounts, arguments, environment, user="0:0"):
    """Script of bash that mounts, then becomes a program in the image's folder."""
    uid, gid = numbers(user)
    # A user without rights is also to get none.
    become = [] if uid == 0 else ["-S", uid, "-G", gid]
    rights = [] if uid == 0 else ["setpriv", "--no-new-privs", "--inh-caps=-all"]
    values = [f"{name}={value}" for name, value in environment.items()]
    command = [*rights, "env", "-i", *values, shutil.which("unshare"), f"--root={image.root}",
               f"--wd={image.folder}", *become, *arguments]
    return "\n".join(["set -e", *mounts, "exec " + shlex.join(map(str, command))])


class Builder:
    """Builds stages when they are asked for: those that nobody needs are not, as with BuildKit."""

    def __init__(self, path, context, folder, base, log):
        """base(name, folder) makes the Image of a FROM that is no stage; log: a file open to write."""
        self.context, self.folder, self.base, self.log = context, Path(folder).resolve(), base, log
        self.images, self.stages, self.values = {}, [], {}
        for step in parse(path):
            if step.name == "FROM":
                words = expand(step.text, self.values).split()
                if len(words) != 1 and (len(words) != 3 or words[1].upper() != "AS"):
                    raise Fault(f"{step.where}: expected FROM image [AS name], got {step.text}")
                name = words[2] if len(words) == 3 else str(len(self.stages))
                self.stages.append((name, words[0], []))
            elif self.stages:
                self.stages[-1][2].append(step)
            elif step.name == "ARG":
                name, _, default = step.text.partition("=")
                self.values[name] = default
            else:
                raise Fault(f"{step.where}: {step.name} before FROM")

    def image(self, name=None, before=None):
        """The image of a stage (without a name the last), or of a base. before: of that stage's text."""
        number = next((i for i, stage in enumerate(self.stages[:before]) if stage[0] == name), None)
        if name is None:
            number, name = len(self.stages) - 1, self.stages[-1][0]
        if name not in self.images:
            self.images[name] = (self.build(number) if number is not None else
                                 self.base(name, self.folder / re.sub(r"\W", "-", name)))
        return self.images[name]

    def build(self, number):
        name, parent, steps = self.stages[number]
        base = self.image(parent, number)
        if base.stands_in and steps:
            raise Fault(f"stage {name}: {parent} only stands in for its files here")
        print(f"   {name}: from {parent}", flush=True)
        if not steps:
            return base
        root = self.folder / f"stage-{name}"
        subprocess.run(["cp", "-a", base.root, root], check=True)
        image = replace(base, root=root, environment=dict(base.environment))
        local = {"commanded": False, "arguments": {}, "number": number}
        for step in steps:
            flags = "".join(f"--{flag}={value} " for flag, value in step.flags)
            shown = f"   {name}: {step.name} {flags}{' '.join(step.text.split())}"
            print(shown if len(shown) < 120 else shown[:116] + " ...", flush=True)
            start = time.monotonic()
            try:
                getattr(self, "do_" + step.name.lower())(image, step, local)
            except Fault as fault:
                raise Fault(f"{step.where}: {step.name}: {fault}") from None
            if step.name == "RUN":
                print(f"   {name}: {time.monotonic() - start:.0f} s", flush=True)
        return image

    def do_run(self, image, step, local):
        mounts = [f"mount -t proc proc {image.root}/proc", f"mount --rbind /dev {image.root}/dev"]
        for _, value in step.flags:
            mounts += self.mount(image, dict(part.split("=", 1) for part in value.split(",")), local)
        environment = {"HOME": "/root"} | local["arguments"] | image.environment
        script = enter(image, mounts, arguments(step.text), environment, image.user)
        command = [*BOUND, "unshare", "--mount", "bash", "-c", script]
        print(f"\n## {step.where}: {step.text}", file=self.log, flush=True)
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log,
                                   stderr=subprocess.STDOUT)
        try:
            status = running.wait()
        finally:
            running.kill()
            running.wait()
        if status:
            raise Fault(f"status {status} ({self.log.name})")

    def mount(self, image, options, local):
        if options.keys() != {"type", "from", "source", "target"} or options["type"] != "bind":
            raise Fault(f"expected --mount=type=bind,from=,source=,target=, got {options}")
        source = self.image(options["from"], local["number"]).inside(options["source"])
        target = image.inside(options["target"])
        if not source.exists():
            raise Fault(f"{options['source']}: not in {options['from']}")
        make_folder(target)
        return bind(source, target, "ro")

    def do_copy(self, image, step, local):
        flags = dict(step.flags)
        *sources, target = expand(step.text, local["arguments"] | image.environment).split()
        into = image.inside(Path(image.folder) / target)
        if len(sources) > 1 and not target.endswith("/"):
            raise Fault(f"several sources need a folder with / at its end, got {target}")
        for source in sources:
            if "from" in flags:
                found, kept = self.image(flags["from"], local["number"]).inside(source), lambda _: True
            else:
                found, kept = self.context.root / source, self.context.kept
            below = not found.is_dir() and (target.endswith("/") or into.is_dir())
            count, size = copy_files(found, into / Path(source).name if below else into,
                                     numbers(flags.get("chown", "0:0")), kept) if found.exists() else (0, 0)
            if count == 0:
                raise Fault(f"{source}: not there, or ignored")
            print(f"## {step.where}: {source}: {count} files, {size} bytes", file=self.log, flush=True)

    def do_env(self, image, step, local):
        image.environment |= pairs(step.text, local["arguments"] | image.environment)

    def do_arg(self, image, step, local):
        name, equals, default = step.text.partition("=")
        if not equals and name not in self.values:
            raise Fault(f"{name} has no value, and nothing gives one here")
        local["arguments"][name] = (expand(default, local["arguments"] | image.environment) if equals
                                    else self.values[name])

    def do_workdir(self, image, step, local):
        image.folder = os.path.join(image.folder, expand(step.text, image.environment))
        make_folder(image.inside(image.folder))

    def do_user(self, image, step, local):
        numbers(step.text)
        image.user = step.text

    def do_expose(self, image, step, local):
        image.ports = image.ports + step.text.split()

    def do_volume(self, image, step, local):
        image.volumes = image.volumes + (json.loads(step.text) if step.text.startswith("[")
                                         else step.text.split())

    def do_label(self, image, step, local):
        image.labels = image.labels | pairs(step.text, local["arguments"] | image.environment)

    def do_entrypoint(self, image, step, local):
        image.entrypoint = arguments(step.text)
        if not local["commanded"]:
            image.command = []

    def do_cmd(self, image, step, local):
        image.command, local["commanded"] = arguments(step.text), True

    def do_stopsignal(self, image, step, local):
        image.stop_signal = step.text

    def do_healthcheck(self, image, step, local):
        name, _, command = step.text.partition(" ")
        if name != "CMD":
            raise Fault(f"expected CMD, got {name}")
        image.check, image.check_flags = arguments(command.strip()), dict(step.flags)
