package process_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
	"mariposa/listener/porttest"
)

// These tests act as a tenant who tries to reach more than their own instance. Each
// attack is run twice: without isolation it must succeed, or it would prove nothing; with
// isolation it must fail.

const gotIt = "got it"

// tenantMain is an attack that needs a program: `tenant ATTACK ARGUMENT`.
func tenantMain(args []string) int {
	err := programs[args[0]](args[1])
	if err != nil {
		fmt.Println("denied:", err)
		return 1
	}
	fmt.Println(gotIt)
	return 0
}

var programs = map[string]func(argument string) error{
	"ptrace": func(pid string) error {
		n, _ := strconv.Atoi(pid)
		runtime.LockOSThread() // only the thread that attached may detach
		if err := syscall.PtraceAttach(n); err != nil {
			return err
		}
		for {
			if _, err := syscall.Wait4(n, nil, 0, nil); err != syscall.EINTR {
				break
			}
		}
		return syscall.PtraceDetach(n)
	},
	"signal": func(pid string) error {
		n, _ := strconv.Atoi(pid)
		return syscall.Kill(n, 0)
	},
	"mount":        func(string) error { return unmounting(unix.Mount("tmpfs", ".", "tmpfs", 0, "")) },
	"mknod":        func(string) error { return unix.Mknod("disk", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))) },
	"chroot":       func(string) error { return unix.Chroot(".") },
	"unshare user": func(string) error { return startWith(unix.CLONE_NEWUSER) },
	"unshare pid":  func(string) error { return startWith(unix.CLONE_NEWPID) },
	"keyring": func(string) error {
		_, err := unix.AddKey("user", "mariposa-test", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
		return err
	},
	"bpf": func(string) error {
		_, _, errno := unix.Syscall(unix.SYS_BPF, 1, 0, 0) // an invalid lookup, which fails with another error than a forbidden one
		return notAllowed(errno)
	},
	"perf": func(string) error {
		_, _, errno := unix.Syscall6(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0, 0)
		return notAllowed(errno)
	},
	"vsock": func(string) error {
		_, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		return err
	},
	"abstract socket": func(name string) error {
		c, err := net.Dial("unix", "@"+name)
		if err == nil {
			_ = c.Close()
		}
		return err
	},
	"connect": func(path string) error {
		c, err := net.Dial("unix", path)
		if err == nil {
			_ = c.Close()
		}
		return err
	},
	"listen": func(path string) error {
		l, err := net.Listen("unix", path)
		if err != nil {
			return err
		}
		fmt.Println("listening")
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			_ = c.Close()
		}
	},
	"tcp":           func(port string) error { return listenOn(port, unix.IPPROTO_TCP) },
	"multipath tcp": func(port string) error { return listenOn(port, unix.IPPROTO_MPTCP) },
	"shared memory": func(key string) error {
		n, _ := strconv.Atoi(key)
		_, err := unix.SysvShmGet(n, 4096, 0)
		return err
	},
	"become root": func(string) error {
		if os.Geteuid() != 0 {
			return fmt.Errorf("it runs as %d", os.Geteuid())
		}
		return nil
	},
	"fork": func(count string) error {
		n, _ := strconv.Atoi(count)
		for range n {
			c := exec.Command("sleep", "1000")
			c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := c.Start(); err != nil {
				return err
			}
			defer c.Process.Kill()
		}
		return nil
	},
	"open files": func(count string) error {
		n, _ := strconv.Atoi(count)
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Max < uint64(n) {
			return fmt.Errorf("%d are the most (%w)", limit.Max, err)
		}
		return nil
	},
}

// listenOn listens on a port of this machine.
func listenOn(port string, protocol int) error {
	n, err := strconv.Atoi(os.ExpandEnv(port))
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	return unix.Listen(fd, 1)
}

func unmounting(err error) error {
	if err == nil {
		err = unix.Unmount(".", unix.MNT_DETACH)
	}
	return err
}

// startWith starts a program in its own namespace.
func startWith(flags uintptr) error {
	c := exec.Command("true")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	return c.Run()
}

func notAllowed(errno syscall.Errno) error {
	if errors.Is(errno, unix.EPERM) || errors.Is(errno, unix.EACCES) || errors.Is(errno, unix.ENOSYS) {
		return errno
	}
	return nil
}

// target is what a tenant attacks: a node's directory with secrets in it, and another
// tenant's instance with its own.
type target struct {
	*agent
	base, root string
	victim     driver.Observed
	volume     string
	socket     string
	key        int
}

const victimSecret = "planted-in-the-victim"

func newTarget(t *testing.T, with process.Isolation) *target {
	t.Helper()
	base := t.TempDir()
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	must(t, os.Chmod(base, 0o755)) // the most careless permissions
	for _, name := range []string{"admin.token", "secret.key", "mariposa.db", "node.json"} {
		must(t, os.WriteFile(filepath.Join(base, name), []byte(victimSecret), 0o600))
	}
	g := &target{base: base, root: filepath.Join(base, "instances"), socket: "mariposa-test-" + drivertest.NewID(), key: 0x6d000000 + os.Getpid()<<8 + int(with)}
	g.agent = open(t, process.Options{
		Root: g.root, Volumes: filepath.Join(base, "volumes"), Networks: filepath.Join(base, "networks"), Hidden: []string{base},
		Isolation: with, Processes: 100, TmpSize: 4 << 20, Paths: []string{base + "/../"},
	})
	id := drivertest.NewID()
	i := sh(id, `echo $SECRET > mine; echo $SECRET > "$MARIPOSA_VOLUME_DATA/mine"; echo $SECRET; echo up; exec sleep 1000`)
	i.Workload.Environment = vars("SECRET", victimSecret)
	i.Workload.Files, i.Mdata.Values = vars("/run/secrets/db", victimSecret), vars("k", victimSecret)
	v := g.volumeAt(t, "v-victim", "data", "/data")
	i.Volumes, g.volume = []driver.Volume{v}, v.Source
	g.victim = g.agent.start(t, i)
	awaitLog(t, g.agent, id, "up")
	listener, err := net.Listen("unix", "@"+g.socket)
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	segment, err := unix.SysvShmGet(g.key, 4096, unix.IPC_CREAT|0o666)
	must(t, err)
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(segment, unix.IPC_RMID, nil) })
	return g
}

// attacks are commands; words that begin with $ are replaced by values of the target.
func (g *target) attacks(t *testing.T) map[string][]string {
	t.Helper()
	shell := func(script string) []string { return []string{"sh", "-c", script} }
	read := func(path string) []string {
		return shell(`grep -q planted-in-the-vic[t]im '` + path + `' && echo ` + gotIt)
	}
	program := func(name, argument string) []string { return []string{os.Args[0], "tenant", name, argument} }
	pid, dir := g.victim.Details["pid"], g.victim.Details["directory"]
	all := map[string][]string{
		"the admin token":             read(g.base + "/admin.token"),
		"the key that seals secrets":  read(g.base + "/secret.key"),
		"the store":                   read(g.base + "/mariposa.db"),
		"the node's key":              read(g.base + "/node.json"),
		"another's files":             read(g.Private(g.victim.ID) + "/files/run/secrets/db"),
		"another's values":            read(g.Private(g.victim.ID) + "/mdata.json"),
		"another's volume":            read(g.volume + "/mine"),
		"another's working directory": read(dir + "/work/mine"),
		"another's log":               read(dir + "/log"),
		"another's environment":       shell(`cat /proc/[0-9]*/environ 2>/dev/null | grep -q planted-in-the-vic[t]im && echo ` + gotIt),
		"another's root":              read("/proc/" + pid + "/root" + dir + "/work/mine"),
		"who else is there":           shell(`test -d /proc/` + pid + ` && echo ` + gotIt),
		"the agent's files":           shell(`ls /proc/` + strconv.Itoa(os.Getpid()) + `/fd && echo ` + gotIt),
		"listing the instances":       shell(`ls ` + g.root + ` | grep -q ` + g.victim.ID + ` && echo ` + gotIt),
		"ptrace":                      program("ptrace", pid),
		"a signal":                    program("signal", pid),
		"an abstract socket":          program("abstract socket", g.socket),
		"shared memory":               program("shared memory", strconv.Itoa(g.key)),
		"a fork bomb":                 program("fork", "150"),
		"filling /tmp":                shell(`f=$(mktemp); head -c 5000000 /dev/zero > $f; c=$?; rm -f $f; [ $c = 0 ] && echo ` + gotIt),
		"a user namespace":            program("unshare user", ""),
	}
	if process.LandlockVersion() >= 4 { // older kernels cannot restrict ports, and the node reports that
		all["a port of another program"] = program("tcp", strconv.Itoa(porttest.Reserve(t)))
		all["such a port by multipath TCP"] = program("multipath tcp", strconv.Itoa(porttest.Reserve(t)))
	}
	if os.Getuid() == 0 { // impossible without isolation, too
		must(t, os.WriteFile(filepath.Join(filepath.Dir(g.base), "other"), nil, 0o600))
		suid := filepath.Join(filepath.Dir(g.base), "suid-"+strconv.Itoa(g.key))
		install(t, os.Args[0], suid, "4755")
		for name, command := range map[string][]string{
			"mounting":         program("mount", ""),
			"a device":         program("mknod", ""),
			"another root":     program("chroot", ""),
			"a PID namespace":  program("unshare pid", ""),
			"a kernel keyring": program("keyring", ""),
			"bpf":              program("bpf", ""),
			"perf":             program("perf", ""),
			"being root":       program("become root", ""),
			"a setuid program": {suid, "tenant", "become root", ""},
			"writing to /usr":  shell(`touch /usr/mariposa-test-$$ && rm /usr/mariposa-test-$$ && echo ` + gotIt),
			"writing to /etc":  shell(`touch /etc/mariposa-test-$$ && rm /etc/mariposa-test-$$ && echo ` + gotIt),
			"a closed file":    shell(`cat ` + filepath.Dir(g.base) + `/other && echo ` + gotIt),
			"the clock":        shell(`date -s "$(date)" && echo ` + gotIt),
			"any open files":   program("open files", "70000"),
		} {
			all[name] = command
		}
	}
	return all
}

func TestATenantGetsNothingBeyondTheirInstance(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]process.Isolation{"without isolation": process.IsolationOff, "isolated": process.IsolationRequired} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newTarget(t, with)
			for what, command := range g.attacks(t) {
				i := instance(drivertest.NewID(), command...)
				g.agent.start(t, i)
				end := g.endOf(t, i.ID)
				got := strings.Contains(g.logOf(t, i.ID), gotIt)
				if succeeds := with == process.IsolationOff; got != succeeds && (got || !hostForbids(what)) {
					t.Errorf("%s: succeeds: %v (%s)\n%s", what, got, end.Reason, g.logOf(t, i.ID))
				}
				g.remove(t, i.ID)
			}
			if found, _ := g.find(t, g.victim.ID); !found.Running {
				t.Errorf("the victim shows %+v", found)
			}
		})
	}
}

func TestAnInstanceListensOnItsOwnPorts(t *testing.T) {
	t.Parallel()
	a, _, _ := newAgent(t)
	for what, port := range map[string]string{"its port": "$PORT", "its other port": "$PORT_81", "any port": "0"} {
		i := instance(drivertest.NewID(), os.Args[0], "tenant", "tcp", port)
		i.Workload.Ports = []mariposa.Port{{Target: 80}, {Target: 81}}
		a.start(t, i)
		end := a.endOf(t, i.ID)
		if log := a.logOf(t, i.ID); !strings.Contains(log, gotIt) {
			t.Errorf("%s: %s\n%s", what, end.Reason, log)
		}
		a.remove(t, i.ID)
	}
}

// hostForbids names attacks that a machine may prevent for everybody, isolated or not.
func hostForbids(what string) bool {
	return map[string]bool{"perf": true, "bpf": true, "a kernel keyring": true, "a user namespace": true, "any open files": true, "the clock": true, "such a port by multipath TCP": true}[what]
}

// endOf waits for the end of one instance.
func (a *agent) endOf(t *testing.T, id string) (o driver.Observed) {
	t.Helper()
	eventually(t, "it has ended", func() bool {
		o, _ = a.find(t, id)
		return !o.Running
	})
	return o
}

func (a *agent) logOf(t *testing.T, id string) string {
	t.Helper()
	r, err := a.Logs(t.Context(), id, driver.LogOptions{Tail: -1})
	must(t, err)
	defer r.Close()
	b := make([]byte, 64<<10)
	n, _ := r.Read(b)
	return string(b[:n])
}

// statusOf returns the rights of a process according to the kernel.
func statusOf(text string) string {
	var list []string
	for line := range strings.Lines(text) {
		for _, name := range []string{"Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:"} {
			if strings.HasPrefix(line, name) {
				list = append(list, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return strings.Join(list, "\n")
}

func TestACommandInsideHasNoMoreRightsThanTheInstance(t *testing.T) {
	t.Parallel()
	a, _, id := newAgent(t)
	i := sh(id, `cat /proc/self/status; ulimit -n; echo end; exec sleep 1000`)
	o := a.start(t, i)
	lines := awaitLog(t, a, id, "end")
	main := statusOf(strings.Join(lines, "\n"))
	for _, want := range []string{"NoNewPrivs: 1", "CapEff: 0000000000000000", "CapPrm: 0000000000000000", "CapBnd: 0000000000000000", "CapAmb: 0000000000000000", "Seccomp: 2"} {
		if !strings.Contains(main, want) {
			t.Errorf("it lacks %q:\n%s", want, main)
		}
	}
	if isolated := "Uid: " + o.Details["uid"] + " "; os.Getuid() == 0 && !strings.Contains(main, isolated) {
		t.Errorf("it lacks %q:\n%s", isolated, main)
	}
	s, err := a.Exec(t.Context(), i, driver.ExecOptions{Command: []string{"cat", "/proc/self/status"}})
	must(t, err)
	defer s.Close()
	b := make([]byte, 64<<10)
	n, _ := s.Stdout().Read(b)
	if inside := statusOf(string(b[:n])); inside != main {
		t.Errorf("a command inside has\n%s\nthe instance\n%s", inside, main)
	}
	if namespaces := func(path string) string { to, _ := os.Readlink(path); return to }; os.Getuid() == 0 {
		for _, name := range []string{"pid", "mnt", "ipc"} {
			if namespaces("/proc/self/ns/"+name) == namespaces("/proc/"+o.Details["pid"]+"/ns/"+name) {
				t.Errorf("it shares the %s namespace", name)
			}
		}
	}
}

// /var/tmp is a link to /tmp inside, and may contain the directories of a node outside.
func TestANodeMayKeepItsFoldersInVarTmp(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("/var/tmp", "mariposa-test-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	a := open(t, process.Options{Root: root})
	i := sh(drivertest.NewID(), "cd $HOME && echo in > file && cat file; echo end; exec sleep 1000")
	a.start(t, i)
	if got := awaitLog(t, a, i.ID, "end"); strings.Join(got, "") != "in" {
		t.Errorf("it said %q", got)
	}
	a.remove(t, i.ID)
}

func TestInstancesSeeTheirOwnAndTheSystem(t *testing.T) {
	t.Parallel()
	given := t.TempDir()
	must(t, os.Chmod(filepath.Dir(given), 0o755))
	must(t, os.WriteFile(filepath.Join(given, "script"), []byte("echo from the script\n"), 0o644))
	a := open(t, process.Options{Root: newRoot(t), Paths: []string{given}})
	i := sh(drivertest.NewID(), `sh `+given+`/script; echo x > w && mkdir d && mv w d/ && cat d/w; echo tmp > /tmp/t && cat /tmp/t
echo $(ls /tmp | grep -v ^Test); id -un; tty >/dev/null; cat /etc/passwd | grep -c .; test -r /etc/resolv.conf && echo net; ls /dev | tr '\n' ' '; echo
echo shm > /dev/shm/x && cat /dev/shm/x; nproc > /dev/null && echo cpus; echo $HOME; test -e /etc/shadow || echo no shadow; ls /home /root; echo end; exec sleep 1000`)
	o := a.start(t, i)
	got := strings.Join(awaitLog(t, a, i.ID, "end"), "\n")
	want := "from the script\nx\ntmp\nt\ninstance\n3\nnet\nfd full null ptmx pts random shm stderr stdin stdout tty urandom zero \nshm\ncpus\n" + o.Details["directory"] + "/work\nno shadow\n/home:\n\n/root:"
	if got != want {
		t.Errorf("it sees\n%s\nwant\n%s", got, want)
	}
}

// TestTheKernelEndsTheCommandBeforeItsSupervisors checks which process the kernel kills
// first when an instance exceeds its memory limit. If it were the supervisor, the end
// would not be recorded.
func TestTheKernelEndsTheCommandBeforeItsSupervisors(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	o := a.start(t, instance(id, "sleep", "1000"))
	score := func(pid int) int {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		must(t, err)
		return n
	}
	for _, init := range process.Inits(root) {
		if command := score(pidOf(t, o)); command < score(init)+300 {
			t.Errorf("the command has %d, its init %d", command, score(init))
		}
	}
}

// TestNoCommandTellsWhatThereIs uses paths that an instance cannot see as its command,
// and gets the same error whether they exist or not.
func TestNoCommandTellsWhatThereIs(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: others run instances as themselves")
	}
	base := t.TempDir()
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	closed, link := filepath.Join(base, "closed"), "link"
	must(t, os.Mkdir(closed, 0o700))
	must(t, os.WriteFile(filepath.Join(closed, "there"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(closed, "folder"), 0o700))
	a, root, id := newAgent(t)
	victim := instance(drivertest.NewID(), "sleep", "1000")
	pid := a.start(t, victim).Details["pid"]
	answer := func(name string, env ...string) string {
		i := instance(drivertest.NewID(), name)
		i.Workload.Environment = vars(env...)
		_, err := a.tryStart(t, i)
		if err == nil {
			t.Fatalf("%s was started", name)
		}
		return strings.ReplaceAll(err.Error(), name, "NAME")
	}
	linked := func(to string) string {
		a.start(t, sh(id, `ln -sfn `+to+` `+link))
		a.endOf(t, id)
		_, err := a.tryStart(t, instance(id, "./"+link))
		return fmt.Sprint(err)
	}
	for what, answers := range map[string][]string{
		"a file":              {answer(closed + "/there"), answer(closed + "/missing"), answer(closed + "/folder")},
		"PATH":                {answer("there", "PATH", closed), answer("missing", "PATH", closed)},
		"a link":              {linked(closed + "/there"), linked(closed + "/missing"), linked(closed + "/folder")},
		"our own directories": {answer(root + "/" + victim.ID + "/spec.json"), answer(root + "/missing")},
		"another's root":      {answer("/proc/" + pid + "/root/etc/passwd"), answer("/proc/" + pid + "/root/etc/missing")},
	} {
		for _, other := range answers[1:] {
			if other != answers[0] {
				t.Errorf("%s: %q, but %q", what, answers[0], other)
			}
		}
	}
}

func TestAFolderIsHiddenHoweverItIsNamed(t *testing.T) {
	base := t.TempDir()
	t.Chdir(base)
	must(t, os.Mkdir("data", 0o700))
	must(t, os.Symlink("data", "link"))
	for _, name := range []string{"data", "./data", "link", filepath.Join(base, "data")} {
		if a := open(t, process.Options{Root: newRoot(t), Hidden: []string{name}}); !a.Hides(filepath.Join(base, "data", "admin.token")) {
			t.Errorf("%s is not hidden", name)
		}
	}
}
