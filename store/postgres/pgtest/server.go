package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mariposa/listener/porttest"

	"github.com/jackc/pgx/v5"
)

// Password is the server's password. Tests look for it where it must not appear.
const Password = "open-sesame-41"

const superuser = "postgres"

// Server is a PostgreSQL server. Its methods are for one goroutine at a time.
type Server struct {
	Port int // on 127.0.0.1

	programs string // the directory of its programs
	folder   string // contains all its files
	identity *syscall.Credential
	settings []string

	guard  *exec.Cmd // nil: it is stopped
	leash  *os.File  // while this is open, the guard keeps the server running
	master int       // the process id of the server
}

// prepare creates a directory in which a server can start.
func prepare(settings ...string) (*Server, error) {
	programs, err := find()
	if err != nil {
		return nil, err
	}
	s := &Server{programs: programs, settings: settings}
	if s.identity, err = unprivileged(); err != nil {
		return nil, err
	}
	if err := s.makeFolder(); err != nil {
		return nil, err
	}
	if err := s.initialize(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.folder))
	}
	return s, nil
}

// follow creates a directory in which a standby of the server can start.
func (s *Server) follow() (*Server, error) {
	c := &Server{programs: s.programs, settings: s.settings, identity: s.identity}
	if err := c.makeFolder(); err != nil {
		return nil, err
	}
	copying := c.command("pg_basebackup", "--pgdata", c.data(), "--dbname", s.URL("postgres"), "--write-recovery-conf", "--checkpoint", "fast", "--no-sync")
	if out, err := copying.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("pg_basebackup: %w: %s", err, out), os.RemoveAll(c.folder))
	}
	return c, nil
}

// Promote makes a standby accept writes.
func (s *Server) Promote() error { return s.Exec("SELECT pg_promote()") }

func (s *Server) makeFolder() (err error) {
	if s.folder, err = os.MkdirTemp("", "mariposa-pg-"); err != nil || s.identity == nil {
		return err
	}
	return os.Chown(s.folder, int(s.identity.Uid), int(s.identity.Gid))
}

// find looks for the programs where Debian installs them, newest first, and then in the
// path.
func find() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
	if len(found) > 0 {
		return filepath.Dir(found[0]), nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", errors.New("the PostgreSQL server is not installed: run scripts/setup.sh")
}

func version(program string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(program)))) // 0 if it is no number
	return n
}

// unprivileged returns the user that runs the server: PostgreSQL refuses to run as root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(superuser)
	if err != nil {
		return nil, fmt.Errorf("no user to run the PostgreSQL server as: run scripts/setup.sh: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (s *Server) initialize() error {
	secret := filepath.Join(s.folder, "password")
	if err := os.WriteFile(secret, []byte(Password), 0o600); err != nil {
		return err
	}
	if s.identity != nil {
		if err := os.Chown(secret, int(s.identity.Uid), int(s.identity.Gid)); err != nil {
			return err
		}
	}
	// With the default, SCRAM, server and client derive keys from the password for each
	// connection, which costs more than most tests.
	c := s.command("initdb", "--pgdata", s.data(), "--username", superuser, "--pwfile", secret,
		"--auth", "md5", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.folder, "data") }
func (s *Server) log() string  { return filepath.Join(s.folder, "log") }

func (s *Server) command(program string, args ...string) *exec.Cmd {
	c := exec.CommandContext(context.Background(), filepath.Join(s.programs, program), args...)
	c.Dir = s.folder
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	// A session of its own, so that ^C at the tests does not reach the server
	// before the tests have ended.
	c.SysProcAttr = &syscall.SysProcAttr{Credential: s.identity, Setsid: true}
	return c
}

// URL returns the connection URL of one of the server's databases.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, Password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// guarding runs a server until it reads a signal to end it with. If its input ends
// without one, the test binary is gone: then it removes everything.
const guarding = `
"$@" </dev/null >>"$LOG" 2>&1 &
echo $! >"$PID.new" && mv "$PID.new" "$PID"
read -r signal
kill -${signal:-QUIT} $! 2>/dev/null
wait $!
[ "$signal" ] || rm -rf "$FOLDER"`

const (
	retryTimeout = 10 * time.Second // how long a start that fails is tried again
	readyTimeout = time.Minute      // how long a started server may take to answer
)

// Start starts the server on its former port, or any free one, and returns once it
// answers. The error of a start that fails holds the end of the server's log.
func (s *Server) Start() error { return s.tryToStart(retryTimeout) }

func (s *Server) tryToStart(within time.Duration) error {
	if s.guard != nil {
		return nil
	}
	s.endOrphans()
	if s.Port == 0 {
		port, err := porttest.Find()
		if err != nil {
			return err
		}
		s.Port = port
	}
	for deadline := time.Now().Add(within); ; {
		err := s.launch()
		if err == nil {
			return nil
		}
		s.Stop()
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// orphanTimeout is how long the processes of a killed server may take to end by
// themselves.
const orphanTimeout = 10 * time.Second

// endOrphans waits for the processes of a killed server, which keep the next one from
// starting. On a busy machine they take seconds to end; what is left then is killed.
func (s *Server) endOrphans() {
	for deadline := time.Now().Add(orphanTimeout); ; time.Sleep(10 * time.Millisecond) {
		left := s.orphans()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
	}
}

// orphans returns the processes that work in the server's data directory, as all of its
// own do.
func (s *Server) orphans() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range all {
		if at, err := os.Readlink(link); err == nil && at == s.data() { // others' cannot be read
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func (s *Server) launch() error {
	pid := filepath.Join(s.folder, "pid")
	if err := os.Remove(pid); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	args := []string{"-c", guarding, "guard", filepath.Join(s.programs, "postgres"), "-D", s.data(), "-k", s.folder}
	for _, setting := range append([]string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(s.Port), "max_connections=200", "fsync=on", "synchronous_commit=on",
	}, s.settings...) {
		args = append(args, "-c", setting)
	}
	c := s.command("postgres")
	c.Path, c.Args = "/bin/sh", append([]string{"sh"}, args...)
	c.Env = append(c.Env, "LOG="+s.log(), "PID="+pid, "FOLDER="+s.folder)
	out, leash, err := os.Pipe()
	if err != nil {
		return err
	}
	c.Stdin = out
	err = c.Start()
	out.Close()
	if err != nil {
		leash.Close()
		return err
	}
	s.guard, s.leash, s.master = c, leash, 0
	return s.ready(pid)
}

// ready waits until the server answers.
func (s *Server) ready(pidFile string) error {
	deadline := time.Now().Add(readyTimeout)
	for {
		if text, err := os.ReadFile(pidFile); err == nil && s.master == 0 {
			if s.master, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
				return err
			}
		}
		err := s.answers()
		if err == nil {
			return nil
		}
		if s.master != 0 && ended(s.master) || time.Now().After(deadline) {
			tail, _ := os.ReadFile(s.log())
			return fmt.Errorf("PostgreSQL does not start: %w\n%s", err, tail[max(0, len(tail)-2000):])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ended reports whether a process has ended, even if its guard, which waits for input
// from the tests, has not reaped it yet.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func (s *Server) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Stop ends the server as an operator would: it aborts transactions and shuts down
// cleanly.
func (s *Server) Stop() { s.end("INT") }

// Kill ends the server like a power cut: kill -9 of its first process, after which the
// others end by themselves.
func (s *Server) Kill() { s.end("KILL") }

func (s *Server) end(signal string) {
	if s.guard == nil {
		return
	}
	_, _ = fmt.Fprintln(s.leash, signal) // the guard may have ended
	s.leash.Close()
	_ = s.guard.Wait() // how the server ended is known
	s.guard = nil
}
