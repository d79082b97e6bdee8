"""Code that tries to escape from the sandbox or to exhaust it.

The code must not end with the word ESCAPED as its value or on its output, and the service must go on; `Host` checks
what code could have done to the outside. In the code `HOST` stands for a directory that is not the session's, with a
file `canary` in it, `SERVER` for the process that serves, and `SOCKET` for a socket that somebody listens on.
"""

from __future__ import annotations

from typing import NamedTuple


class Escape(NamedTuple):
    name: str
    code: str
    # The timeout of the call.
    seconds: float = 5.0


def forge_frame(payload: str) -> str:
    """Return code that writes a forged frame to the server, on the worker's descriptor 3."""
    return f"import os\nf = {payload}\nos.write(3, len(f).to_bytes(4, 'big') + f)\n"


FILES = [
    Escape("reads the password file", "open('/etc/passwd').read(); 'ESCAPED'"),
    Escape("reads it without Python's files", "import os; os.read(os.open('/etc/passwd', os.O_RDONLY), 10); 'ESCAPED'"),
    Escape("lists the root", "import os; os.listdir('/'); 'ESCAPED'"),
    Escape("lists the home of the user", "import os; os.listdir('/root'); 'ESCAPED'"),
    Escape("reads a file next door", "open('HOST/canary').read(); 'ESCAPED'"),
    Escape("reads it from where it is", "import os; os.chdir('HOST'); open('canary').read(); 'ESCAPED'"),
    Escape(
        "reads it by a directory's descriptor",
        "import os; d = os.open('HOST', os.O_PATH); os.open('canary', 0, dir_fd=d); 'ESCAPED'",
    ),
    Escape(
        "reads it through a symlink", "import os; os.symlink('HOST/canary', 'link'); open('link').read(); 'ESCAPED'"
    ),
    Escape(
        "reads it through a symlink to a directory",
        "import os; os.symlink('HOST', 'dir'); open('dir/canary').read(); 'ESCAPED'",
    ),
    Escape("reads it through a hard link", "import os; os.link('HOST/canary', 'link'); 'ESCAPED'"),
    Escape("writes next door", "open('HOST/new', 'w').write('x'); 'ESCAPED'"),
    Escape("writes to the canary", "open('HOST/canary', 'a').write('x'); 'ESCAPED'"),
    Escape("writes to /tmp", "open('/tmp/portico-escaped', 'w'); 'ESCAPED'"),
    Escape("writes to shared memory", "open('/dev/shm/portico-escaped', 'w'); 'ESCAPED'"),
    Escape("writes to the standard library", "import json; open(json.__file__, 'a'); 'ESCAPED'"),
    Escape(
        "adds to the standard library",
        "import os; open(os.path.dirname(os.__file__) + '/portico_escaped.py', 'w'); 'ESCAPED'",
    ),
    Escape("removes a file", "import os; os.unlink('HOST/canary'); 'ESCAPED'"),
    Escape("moves a file in", "import os; os.rename('HOST/canary', 'canary'); 'ESCAPED'"),
    Escape("moves a file out", "import os; open('a', 'w'); os.rename('a', 'HOST/a'); 'ESCAPED'"),
    Escape("empties a file", "import os; os.truncate('HOST/canary', 0); 'ESCAPED'"),
    Escape(
        "empties a file by opening it to read", "import os; os.open('HOST/canary', os.O_RDONLY | os.O_TRUNC); 'ESCAPED'"
    ),
    Escape(
        "empties a file of the library", "import json, os; os.open(json.__file__, os.O_RDONLY | os.O_TRUNC); 'ESCAPED'"
    ),
    Escape("changes a mode", "import os; os.chmod('HOST/canary', 0o777)"),
    Escape("changes the mode of an open file", "import json, os; os.fchmod(os.open(json.__file__, 0), 0o777)"),
    Escape("changes an owner", "import os; os.chown('HOST/canary', 12345, 12345); 'ESCAPED'"),
    Escape("changes times", "import os; os.utime('HOST/canary', (0, 0))"),
    Escape("sets an attribute", "import os; os.setxattr('HOST/canary', 'user.x', b'x'); 'ESCAPED'"),
    Escape("makes a pipe with a name", "import os; os.mkfifo('fifo'); 'ESCAPED'"),
    Escape("makes a device", "import os; os.mknod('disk', 0o60666, os.makedev(8, 0)); 'ESCAPED'"),
    Escape("makes a file without a name", "import os; os.open('.', os.O_TMPFILE | os.O_RDWR); 'ESCAPED'"),
    Escape("watches a directory", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).inotify_init() >= 0 else 'no'"),
    Escape(
        "mounts", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).mount(b'none', b'.', b'tmpfs', 0, None) == 0 else 'no'"
    ),
    Escape("changes the root", "import os; os.chroot('.'); 'ESCAPED'"),
    Escape("reads memory", "open('/dev/mem', 'rb').read(1); 'ESCAPED'"),
    Escape("looks at its neighbours", "import os; os.listdir('..'); 'ESCAPED'"),
]

PROC = [
    Escape("reads its environment in /proc", "open('/proc/self/environ').read(); 'ESCAPED'"),
    Escape("reads the environment of its parent", "import os; open(f'/proc/{os.getppid()}/environ').read(); 'ESCAPED'"),
    Escape("reads the environment of the server", "open('/proc/SERVER/environ').read(); 'ESCAPED'"),
    Escape("reads the memory of the server", "open('/proc/SERVER/mem', 'rb'); 'ESCAPED'"),
    Escape("writes its own memory by a file", "open('/proc/self/mem', 'r+b'); 'ESCAPED'"),
    Escape("lists its descriptors", "import os; os.listdir('/proc/self/fd'); 'ESCAPED'"),
    Escape("opens the server's files again", "open('/proc/SERVER/fd/0'); 'ESCAPED'"),
    Escape("finds the server's program", "import os; os.readlink('/proc/SERVER/exe'); 'ESCAPED'"),
    Escape("lists processes", "import os; os.listdir('/proc'); 'ESCAPED'"),
    Escape("changes the kernel", "open('/proc/sys/kernel/core_pattern', 'w'); 'ESCAPED'"),
    Escape("finds a secret in its environment", "import os; 'ESCAPED' if 'SECRET' in str(os.environ) else 'no'"),
    Escape(
        "finds a secret in libc's environment",
        "import ctypes; 'ESCAPED' if ctypes.CDLL(None).getenv(b'PORTICO_TEST_SECRET') else 'no'",
    ),
    Escape(
        "finds a secret in memory",
        "import gc\nword = 'PORTICO_TEST_' + 'SECRET'\n"
        "there = [o for o in gc.get_objects() if type(o) is dict and o is not globals()]\n"
        "'ESCAPED' if any(word in repr(o)[:10000] for o in there) else 'no'",
    ),
]

NETWORK = [
    Escape("connects with TCP", "import socket; socket.create_connection(('127.0.0.1', 22), 1); 'ESCAPED'"),
    Escape("listens", "import socket; socket.create_server(('127.0.0.1', 0)); 'ESCAPED'"),
    Escape("sends with UDP", "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM); 'ESCAPED'"),
    Escape("asks for a name", "import socket; socket.getaddrinfo('localhost', 80) and 'ESCAPED'"),
    Escape("fetches a page", "import urllib.request; urllib.request.urlopen('http://127.0.0.1/'); 'ESCAPED'"),
    Escape("connects to a local socket", "import socket; socket.socket(socket.AF_UNIX).connect('SOCKET'); 'ESCAPED'"),
    Escape(
        "sends from a pair of datagram sockets",
        "from socket import *; a, b = socketpair(AF_UNIX, SOCK_DGRAM); a.sendto(b'x', 'SOCKET'); 'ESCAPED'",
    ),
    Escape(
        "sends from a pair of stream sockets",
        "import socket; a, b = socket.socketpair(); a.sendto(b'x', 'SOCKET'); 'ESCAPED'",
    ),
    Escape(
        "connects a pair again",
        "import socket; a, b = socket.socketpair(); a.connect('SOCKET'); 'ESCAPED'",
    ),
    Escape(
        "passes a descriptor to the server",
        "import socket; socket.send_fds(socket.socket(fileno=3), [b'x'], [1]); 'ESCAPED'",
    ),
    Escape("opens a raw socket", "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); 'ESCAPED'"),
    Escape("opens a netlink socket", "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); 'ESCAPED'"),
]

PROCESSES = [
    Escape("forks", "import os; os.fork(); 'ESCAPED'"),
    Escape("is a fork bomb", "import os\nwhile True: os.fork()\n'ESCAPED'"),
    Escape("is a patient fork bomb", "import os\nfor _ in range(100000):\n  try: os.fork()\n  except OSError: pass\n"),
    Escape("forks by another name", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).vfork() >= 0 else 'no'"),
    Escape("executes", "import os; os.execv('/bin/sh', ['sh']); 'ESCAPED'"),
    Escape("runs a command", "import subprocess; subprocess.run(['/bin/true']); 'ESCAPED'"),
    Escape("runs a shell", "import os; 'ESCAPED' if os.system('true') == 0 else 'no'"),
    Escape("spawns", "import os; os.posix_spawn('/bin/true', ['true'], {}); 'ESCAPED'"),
    Escape(
        "starts a process pool",
        "import multiprocessing as m; m.get_context('fork').Process(target=print).start(); 'ESCAPED'",
    ),
    Escape("executes from memory", "import os; f = os.memfd_create('x'); os.execv(f, ['x']); 'ESCAPED'"),
    Escape("starts a thread", "import threading; threading.Thread(target=print).start(); 'ESCAPED'"),
    Escape(
        "is a thread bomb",
        "import threading\nthreading.stack_size(32768)\nwhile True: threading.Thread(target=input).start()\n'ESCAPED'",
    ),
    Escape("kills its parent", "import os; os.kill(os.getppid(), 9); 'ESCAPED'"),
    Escape("kills the server", "import os; os.kill(SERVER, 9); 'ESCAPED'"),
    Escape("asks whether the server is there", "import os; os.kill(SERVER, 0); 'ESCAPED'"),
    Escape("kills everybody", "import os; os.kill(-1, 9); 'ESCAPED'"),
    Escape("kills a group", "import os; os.killpg(os.getpgid(os.getppid()), 9); 'ESCAPED'"),
    Escape("kills by a descriptor", "import os, signal; signal.pidfd_send_signal(os.pidfd_open(SERVER), 9); 'ESCAPED'"),
    Escape("kills a thread", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).tgkill(SERVER, SERVER, 9) == 0 else 'no'"),
    Escape(
        "asks for a signal to the server",
        "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, SERVER); 'ESCAPED'",
    ),
    Escape(
        "traces the server", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).ptrace(16, SERVER, 0, 0) == 0 else 'no'"
    ),
    Escape("lets itself be traced", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 else 'no'"),
    Escape(
        "reads the server's memory by a call",
        "import ctypes\nclass V(ctypes.Structure): _fields_ = [('a', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "b = ctypes.create_string_buffer(8)\nl = V(ctypes.addressof(b), 8)\nr = V(0x400000, 8)\n"
        "n = ctypes.CDLL(None).process_vm_readv(SERVER, ctypes.byref(l), 1, ctypes.byref(r), 1, 0)\n"
        "'ESCAPED' if n >= 0 else 'no'",
    ),
    Escape("slows the server down", "import os; os.setpriority(os.PRIO_PROCESS, SERVER, 19); 'ESCAPED'"),
    Escape("slows the user down", "import os; os.setpriority(os.PRIO_USER, 0, 19); 'ESCAPED'"),
    Escape("moves the server to one processor", "import os; os.sched_setaffinity(SERVER, {0}); 'ESCAPED'"),
    Escape("outlives its parent", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0 else 'no'"),
    Escape("leaves its group", "import os; os.setsid(); 'ESCAPED'"),
    Escape("raises its limits", "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); 'ESCAPED'"),
    Escape(
        "raises them within what is allowed",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (601, 601)); 'ESCAPED'",
    ),
    Escape("limits the server", "import resource; resource.prlimit(SERVER, resource.RLIMIT_NOFILE, (0, 0)); 'ESCAPED'"),
    Escape("becomes root", "import os; os.setuid(0); 'ESCAPED'"),
    Escape("becomes another user", "import os; os.setresuid(12345, 12345, 12345); 'ESCAPED'"),
    Escape("makes a namespace", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).unshare(0x10000000) == 0 else 'no'"),
    Escape(
        "makes shared memory", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0 else 'no'"
    ),
    Escape(
        "makes shared memory in Python",
        "from multiprocessing.shared_memory import SharedMemory; SharedMemory(create=True, size=10); 'ESCAPED'",
    ),
    Escape("makes a message queue", "import ctypes; 'ESCAPED' if ctypes.CDLL(None).msgget(0, 0o1600) >= 0 else 'no'"),
    Escape("sets the clock", "import time; time.clock_settime(time.CLOCK_REALTIME, 0); 'ESCAPED'"),
]

BOMBS = [
    Escape("takes 3 GB", "x = bytearray(3 * 10**9); 'ESCAPED'"),
    Escape("takes memory bit by bit", "x = []\nwhile True: x.append(bytearray(10**7))\n'ESCAPED'"),
    Escape("takes memory in small pieces", "x = []\nwhile True: x.append([None] * 1000)\n'ESCAPED'", 10.0),
    Escape("prints for ever", "while True: print('x' * 1000)", 10.0),
    Escape("prints errors for ever", "import sys\nwhile True: sys.stderr.write('x' * 1000)", 10.0),
    Escape("writes to descriptor 1 for ever", "import os\nwhile True: os.write(1, b'x' * 65536)", 10.0),
    Escape("prints slowly for ever", "import time\nwhile True: print('x'); time.sleep(0.001)", 0.5),
    Escape("runs for ever", "while True: pass", 0.5),
    Escape("sleeps for ever", "import time\nwhile True: time.sleep(1000)", 0.5),
    Escape("computes for ever", "9**9**9; 'ESCAPED'", 0.5),
    Escape("computes for ever in C", "sum(x * x for x in iter(int, 1)); 'ESCAPED'", 0.5),
    Escape(
        "cannot be interrupted",
        "import itertools; list(zip(itertools.repeat(0), iter(int, 1))) if 0 else any(itertools.repeat(0))",
        0.5,
    ),
    Escape("matches for ever", "import re; re.match(r'(a+)+$', 'a' * 60 + 'b'); 'ESCAPED'", 0.5),
    Escape("makes a huge text", "'x' * 10**10; 'ESCAPED'"),
    Escape("recurses", "def f(): f()\nf()\n'ESCAPED'"),
    Escape(
        "recurses beyond the stack", "import sys; sys.setrecursionlimit(10**8)\ndef f(x): return f([x, f])\nf(0)", 1.0
    ),
    Escape("recurses in C", "x = []\nfor _ in range(10**6): x = [x]\nrepr(x)"),
    Escape("swallows the interrupt", "while True:\n  try:\n    while True: pass\n  except BaseException: pass", 0.5),
    Escape(
        "ignores the interrupt", "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", 0.5
    ),
    Escape("blocks all signals", "import signal; signal.pthread_sigmask(0, range(1, 65))\nwhile True: pass", 0.5),
    Escape("stops itself", "import os; os.kill(os.getpid(), 19)", 0.5),
    Escape("fills the disk", "i = 0\nwhile True:\n  i += 1\n  open(str(i), 'wb').write(bytes(60_000_000))", 10.0),
    Escape(
        "fills the disk with files that have no name",
        "import os\nx = []\nwhile True:\n"
        "  f = open('a', 'wb', 0); os.unlink('a'); x.append(f); f.write(bytes(60_000_000))",
        10.0,
    ),
    Escape("makes a million files", "for i in range(10**6): open(str(i), 'w').close()", 10.0),
    Escape(
        "makes directories as deep as it can", "import os\nfor i in range(5000): os.mkdir('d'); os.chdir('d')", 10.0
    ),
    Escape("creates a directory without permissions", "import os; os.mkdir('a', 0); os.mkdir('b'); os.mkdir('b/c', 0)"),
    Escape("makes one huge file", "f = open('a', 'wb'); f.truncate(10**12); 'ESCAPED'"),
    Escape(
        "asks for room on the disk",
        "import os; os.posix_fallocate(os.open('a', os.O_CREAT | os.O_RDWR), 0, 10**12); 'ESCAPED'",
    ),
    Escape("opens many files", "x = [open('a', 'w') for _ in range(10**6)]; 'ESCAPED'"),
    Escape("opens many pipes", "import os; x = [os.pipe() for _ in range(10**6)]; 'ESCAPED'"),
    Escape(
        "rings an alarm for ever",
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)\nwhile True: pass",
        0.5,
    ),
    Escape(
        "takes the kernel's memory with locks",
        "import fcntl\nf = open('a', 'w')\nfor i in range(10**6): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * i)",
    ),
]

LIES = [
    Escape("exits", "import os; os._exit(0)"),
    Escape("exits with the status of a broken interpreter", "import os; os._exit(70)"),
    Escape("exits politely", "raise SystemExit(3)"),
    Escape("aborts", "import os; os.abort()"),
    Escape("crashes", "import ctypes; ctypes.string_at(0)"),
    Escape("dies of an unusual signal", "import os; os.kill(os.getpid(), 40)"),
    Escape("closes every descriptor", "import os; os.closerange(0, 1000)"),
    Escape("closes the line and goes on", "import os; os.close(3)\nwhile True: pass", 0.5),
    Escape("puts something else on the line", "import os; os.dup2(0, 3)"),
    Escape("makes the line impatient", "import os; os.set_blocking(3, False)"),
    Escape(
        "writes garbage to every descriptor",
        "import os\nfor fd in range(100):\n  try: os.write(fd, os.urandom(5000))\n  except OSError: pass",
    ),
    Escape("writes half a frame", "import os; os.write(3, b'\\0\\0\\0\\x10{')\nwhile True: pass", 0.5),
    Escape("announces a huge frame", "import os; os.write(3, b'\\xff\\xff\\xff\\xff')"),
    Escape("sends an answer without an answer", forge_frame("""b'{"id":1}'""")),
    Escape("sends many frames", "for _ in range(1000): " + forge_frame("""b'{"id":1}'""").replace("\n", ";")),
    Escape(
        "answers for itself, now and later",
        "for i in range(1, 50): " + forge_frame("""b'{"id":%d,"result":{"text":"no"}}' % i""").replace("\n", ";"),
    ),
    Escape("answers with brackets", forge_frame("""b'{"id":1,"result":' + b'[' * 10**6 + b']' * 10**6 + b'}'""")),
    Escape(
        "answers with many pictures",
        'p = b\',\'.join([b\'{"mimeType":"","data":""}\'] * 250_000)\n'
        + forge_frame("""b'{"id":1,"result":{"pictures":[%s]}}' % p"""),
    ),
    Escape("answers with a long text", forge_frame("""b'{"id":1,"result":{"text":"' + b'x' * 8_000_000 + b'"}}'""")),
    Escape("answers with a value that is none", forge_frame("""b'{"id":1,"result":{"text":"no","value":"[[[["}}'""")),
    Escape(
        "answers with a picture that is none",
        forge_frame("""b'{"id":1,"result":{"pictures":[{"mimeType":"text/html","data":"<script>"}]}}'"""),
    ),
    Escape("answers with the wrong kinds", forge_frame("""b'{"id":1,"result":{"text":[1]}}'""")),
    Escape("answers another question", forge_frame("""b'{"id":99,"result":{}}'""")),
    Escape("says that it is ready again", forge_frame("""b'{"id":0,"result":{}}'""")),
    Escape(
        "prints on the line for ever",
        "while True: " + forge_frame("""b'{"id":1,"output":"x"}'""").replace("\n", ";"),
        1.0,
    ),
    Escape(
        "hears the next question",
        "import os\nos.set_blocking(3, False)\ntry: os.read(3, 1000)\nexcept OSError: pass\nos.set_blocking(3, True)",
    ),
    Escape("is not over when it is over", "import atexit; atexit.register(lambda: open('HOST/new', 'w'))"),
    Escape("replaces the words of the worker", "import json, builtins; json.dumps = None; builtins.len = None; 1"),
    Escape("has no builtins", "import builtins; vars(builtins).clear()"),
    Escape("has no modules", "import sys; sys.modules.clear()"),
    Escape("has no output", "import sys; sys.stdout = sys.stderr = None"),
    Escape("closes its output", "import sys; sys.stdout.close(); sys.stderr.close()"),
    Escape("traces everything", "import sys\ndef t(*a): raise KeyError\nsys.settrace(t)\nsys.setprofile(t)"),
    Escape("cannot be shown", "class A:\n  def __repr__(self): raise SystemExit\nA()"),
    Escape("is never shown", "class A:\n  def __repr__(self):\n    while True: pass\nA()", 0.5),
    Escape("is shown at length", "class A:\n  def __repr__(self): return 'x' * 10**8\nA()"),
    Escape("fails without words", "class E(Exception):\n  def __str__(self): raise E\nraise E"),
    Escape("fails at length", "raise ValueError('x' * 10**7)"),
    Escape("is half a character", "'\\ud800'"),
    Escape("fails with half a character", "raise ValueError('\\ud800')"),
    Escape(
        "is a class that lies",
        "class M(type):\n  __module__ = property(lambda c: 1 / 0)\n  __qualname__ = '\\ud800'\n"
        "class A(metaclass=M): pass\nA()",
    ),
    Escape(
        "finds a way to a shell",
        "[wrap] = [c for c in object.__subclasses__() if c.__name__ == '_wrap_close']\n"
        "'ESCAPED' if wrap.__init__.__globals__['system']('true') == 0 else 'no'",
    ),
    Escape(
        "walks up the frames",
        "import sys\nf = sys._getframe()\nseen = []\nwhile f: seen.append(f.f_locals); f = f.f_back\n"
        "found = [v for d in seen for v in d.values() if hasattr(v, 'control')]\n"
        "found[0].control.sendall(b'{}')\n'ESCAPED'",
    ),
    Escape(
        "unwinds what it runs in",
        "import ctypes, threading\nme = ctypes.c_ulong(threading.get_ident())\n"
        "ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(SystemExit))",
    ),
    Escape(
        "calls the kernel as another machine would",
        "import ctypes, mmap, platform\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3' if platform.machine() == 'x86_64' else b'\\0' * 8)\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "'ESCAPED' if f() > 0 else 'no'",
    ),
    Escape(
        "calls the kernel in a way of its own",
        "import ctypes, mmap, platform\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(b'\\xb8\\x27\\0\\0\\x40\\x0f\\x05\\xc3' if platform.machine() == 'x86_64' else b'\\0' * 8)\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "'ESCAPED' if f() > 0 else 'no'",
    ),
]

ALL = [*FILES, *PROC, *NETWORK, *PROCESSES, *BOMBS, *LIES]
