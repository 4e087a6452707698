package pgtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa/leaktest"
)

// childVariable makes this binary start a server, print its directory and die.
const childVariable = "MARIPOSA_TEST_DIE"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		s, err := prepare()
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString(s.folder)
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	leaktest.Main(m)
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	ctx := t.Context()
	var names []string
	for range 2 {
		conn, err := pgx.Connect(ctx, Start(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		var name, fsync string
		if err := conn.QueryRow(ctx, "SELECT current_database(), current_setting('fsync')").Scan(&name, &fsync); err != nil {
			t.Fatal(err)
		}
		if fsync != "on" {
			t.Fatalf("fsync is %s", fsync)
		}
		names = append(names, name)
	}
	if names[0] == names[1] {
		t.Fatal(names)
	}
}

func TestAServerCanBeStoppedKilledAndStartedAgain(t *testing.T) {
	s := New(t)
	url := s.Database(t, "")
	for _, end := range []func(){s.Stop, s.Kill} {
		end()
		if _, err := pgx.Connect(t.Context(), url); err == nil {
			t.Fatal("it still answers")
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close(t.Context())
	}
}

// Processes of a killed server can outlive it, and keep its shared memory: the next start
// waits for them.
func TestAServerStartsAfterItsSlowOrphans(t *testing.T) {
	s := New(t)
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	pid := int(conn.PgConn().PID())
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // it ends only when it goes on
		t.Fatal(err)
	}
	s.Kill()
	if left := s.orphans(); !slices.Contains(left, pid) {
		t.Fatalf("process %d is not among the orphans %v", pid, left)
	}
	defer time.AfterFunc(2*time.Second, func() { _ = syscall.Kill(pid, syscall.SIGCONT) }).Stop()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

// A server that cannot start is reported with its log.
func TestAServerThatCannotStartSaysWhy(t *testing.T) {
	s := New(t)
	s.Stop()
	control := filepath.Join(s.data(), "global", "pg_control")
	if err := os.Rename(control, control+".away"); err != nil {
		t.Fatal(err)
	}
	err := s.tryToStart(time.Second)
	if err == nil || !strings.Contains(err.Error(), "pg_control") {
		t.Fatalf("started: %v", err)
	}
}

// When a test binary dies, its server ends too.
func TestNothingIsLeftBehindByTestsThatDie(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childVariable+"=1")
	out, err := c.Output()
	folder := string(out)
	if err == nil || !strings.Contains(folder, "mariposa-pg-") {
		t.Fatalf("%v: %s", err, folder)
	}
	for range 600 {
		if _, err := os.Stat(folder); os.IsNotExist(err) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s is still there", folder)
}
