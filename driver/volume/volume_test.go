package volume_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/volume"
	"mariposa/leaktest"
)

// The test binary is also an agent that is killed while it creates volumes.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "create-volumes" {
		s := volume.New(volume.Options{Dir: os.Args[2], Mode: 0o700, RemoveAll: os.RemoveAll})
		for {
			if err := createAndFill(s); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	leaktest.Main(m)
}

// createAndFill creates a volume, grows it, writes to it, and removes another one.
func createAndFill(s *volume.Store) error {
	path, err := s.Provide(context.Background(), sized("kept", 4<<20))
	if err != nil {
		return err
	}
	small := (*driver.GrowError)(nil) // where root may not resize file systems
	if _, err := s.Provide(context.Background(), sized("kept", 6<<20)); err != nil && !errors.As(err, &small) {
		return err
	}
	f, err := os.OpenFile(filepath.Join(path, "diary"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("x")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	fmt.Println("written") // the test counts what must be there
	if _, err := s.Provide(context.Background(), sized("passing", 2<<20)); err != nil {
		return err
	}
	return s.Withdraw("passing")
}

func sized(id string, size int64) driver.Resource {
	return driver.Resource{Kind: mariposa.KindVolume, ID: id, Name: "data", Size: size}
}

// openStore opens the volumes in a directory, and unmounts them after the test.
func openStore(t *testing.T) (*volume.Store, string) {
	t.Helper()
	dir := t.TempDir()
	s := volume.New(volume.Options{Dir: dir, Mode: 0o750, RemoveAll: os.RemoveAll})
	t.Cleanup(func() {
		all, err := s.List()
		if err != nil {
			t.Error(err)
		}
		for _, r := range all {
			withdraw(t, s, r.ID)
		}
		s.Clear()
		awaitFree(t, dir)
	})
	return s, dir
}

// withdraw takes a volume away. A process that another test starts has the files of this one
// open for a moment, until it executes its program.
func withdraw(t *testing.T, s *volume.Store, id string) {
	t.Helper()
	untilFree(t, func() error { return s.Withdraw(id) })
}

// unmount unmounts the volume at a path, as if the machine had rebooted.
func unmount(t *testing.T, path string) {
	t.Helper()
	untilFree(t, func() error {
		if err := unix.Unmount(filepath.Dir(path), 0); err != nil {
			return fmt.Errorf("%s is still used: %w", path, err)
		}
		return nil
	})
}

// untilFree calls a function until it does not fail because something uses a volume.
func untilFree(t *testing.T, do func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(end) || !strings.Contains(err.Error(), "still use") {
			t.Error(err)
			return
		}
	}
}

func provide(t *testing.T, s *volume.Store, r driver.Resource) string {
	t.Helper()
	path, err := s.Provide(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// mountsIn returns the mount points in a directory.
func mountsIn(t *testing.T, dir string) (found []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found
}

// devicesIn returns the loop devices with a file in a directory.
func devicesIn(dir string) (found []string) {
	all, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), dir+"/") {
			found = append(found, path)
		}
	}
	return found
}

// awaitFree waits until nothing in a directory is mounted or has a loop device. The kernel
// frees a device a moment after the file system is unmounted.
func awaitFree(t *testing.T, dir string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mounts, devices := mountsIn(t, dir), devicesIn(dir)
		if len(mounts)+len(devices) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left are the mounts %q and the loop devices %q", mounts, devices)
		}
	}
}

// fillUp writes to a file until that fails, and returns how much was written.
func fillUp(t *testing.T, path string) (int64, error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	chunk, total := make([]byte, 64<<10), int64(0)
	for err == nil && total < 1<<30 {
		var n int
		n, err = f.Write(chunk)
		total += int64(n)
	}
	return total, errors.Join(err, f.Close())
}

func TestAVolumeWithASizeIsFullOnItsOwn(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path := provide(t, s, sized("v1", 8<<20))
	n, err := fillUp(t, filepath.Join(path, "file"))
	if !errors.Is(err, unix.ENOSPC) || n < 4<<20 || n > 8<<20 {
		t.Errorf("after %d bytes it says %v", n, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "beside"), make([]byte, 1<<20), 0o600); err != nil {
		t.Errorf("the machine is full too: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeDir|0o750 {
		t.Errorf("its directory is %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(provide(t, s, sized("v2", 8<<20))); err != nil || len(entries) != 0 {
		t.Errorf("a new one has %v, %v", entries, err)
	}
}

// mayResize reports whether this machine lets root resize file systems. In a container it may
// not. TestAVolumeGrowsOnAMachineThatAllowsIt runs this where it must.
func mayResize(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 || os.Getenv("MAY_RESIZE") != ""
}

func TestAVolumeGrowsWhileItIsUsedAndNeverShrinks(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path := provide(t, s, sized("v1", 2<<20))
	first, _ := fillUp(t, filepath.Join(path, "file"))
	f, err := os.OpenFile(filepath.Join(path, "file"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	again, err := s.Provide(t.Context(), sized("v1", 64<<20))
	if again != path {
		t.Errorf("it is at %s now", again)
	}
	if !mayResize(t) {
		small := (*driver.GrowError)(nil)
		if !errors.As(err, &small) || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
			t.Errorf("says %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 32<<20)); err != nil {
		t.Errorf("an open file does not grow: %v", err)
	}
	for range 2 { // smaller, no size, and the same again
		provide(t, s, sized("v1", 1<<20))
		provide(t, s, sized("v1", 0))
		provide(t, s, sized("v1", 64<<20))
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].Size != 64<<20 {
		t.Errorf("it is %v, %v", all, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != first+32<<20 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if got := mountsIn(t, dir); len(got) != 1 || len(devicesIn(dir)) != 1 {
		t.Errorf("it is mounted at %q with %q", got, devicesIn(dir))
	}
}

// After a reboot nothing is mounted. The content is there again once the agent asks for it, and
// nobody can write to the directory meanwhile.
func TestAVolumeIsMountedAgainAfterAReboot(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path := provide(t, s, sized("v1", 4<<20))
	if err := os.WriteFile(filepath.Join(path, "precious"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	unmount(t, path)
	awaitFree(t, dir)
	if err := os.WriteFile(filepath.Join(path, "lost"), nil, 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file beside the volume: %v", err)
	}
	if again := s.Path("v1"); again != path {
		t.Errorf("it is at %s", again)
	}
	if b, err := os.ReadFile(filepath.Join(provide(t, s, sized("v1", 4<<20)), "precious")); err != nil || string(b) != "data" {
		t.Errorf("it has %q, %v", b, err)
	}
}

// Another mount namespace may still have the volume mounted when this one does not, for example
// that of an instance. A second loop device for the same file would destroy it.
func TestAVolumeThatIsMountedElsewhereGetsNoSecondDevice(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path := provide(t, s, sized("v1", 4<<20))
	elsewhere := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; read line")
	in, err1 := elsewhere.StdinPipe()
	out, err2 := elsewhere.StdoutPipe()
	if err := errors.Join(err1, err2, elsewhere.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	unmount(t, path)
	provide(t, s, sized("v1", 4<<20))
	if got := devicesIn(dir); len(got) != 1 {
		t.Errorf("it has the devices %q", got)
	}
	if err := errors.Join(in.Close(), elsewhere.Wait()); err != nil && !strings.Contains(err.Error(), "exit status") {
		t.Error(err)
	}
}

func TestAVolumeInUseIsNotUnmounted(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t)
	path := provide(t, s, sized("v1", 4<<20))
	f, err := os.Create(filepath.Join(path, "open"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Withdraw("v1"); err == nil || !strings.Contains(err.Error(), "still uses "+filepath.Dir(path)) {
		t.Errorf("says %v", err)
	}
	if _, err := os.Stat(f.Name()); err != nil {
		t.Errorf("its content is gone: %v", err)
	}
	_ = f.Close()
	withdraw(t, s, "v1")
}

func TestAVolumeThatExistsWithoutASizeStaysAsItIs(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path := provide(t, s, sized("v1", 0))
	if path != filepath.Join(dir, "v1") {
		t.Errorf("it is at %s", path)
	}
	if err := os.WriteFile(filepath.Join(path, "precious"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := provide(t, s, sized("v1", 1<<20)); again != path {
		t.Errorf("it moved to %s", again)
	}
	if b, err := os.ReadFile(filepath.Join(path, "precious")); err != nil || string(b) != "data" {
		t.Errorf("it has %q, %v", b, err)
	}
}

// A volume of an earlier build that was not mounted when the agent started is used once a person has
// marked it: its files alone could have been written by its instances.
func TestAVolumeWithoutAMarkIsNotMounted(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path, mark := provide(t, s, sized("v1", 4<<20)), filepath.Join(dir, ".sized-v1")
	if err := os.WriteFile(filepath.Join(path, "precious"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	unmount(t, path)
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	s.Clear()
	if path, err := s.Provide(t.Context(), sized("v1", 4<<20)); err == nil || !strings.Contains(err.Error(), "run `touch "+mark+"` on the node") {
		t.Fatalf("it is at %s, %v", path, err)
	}
	if mounts := mountsIn(t, dir); len(mounts) > 0 {
		t.Errorf("mounted are %q", mounts)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(provide(t, s, sized("v1", 4<<20)), "precious")); err != nil || string(b) != "data" {
		t.Errorf("it has %q, %v", b, err)
	}
}

// Whenever an agent is killed, nothing that was written is lost, and the next agent finds no
// half-made volume, no mount beside those of its volumes, and no loop device too many.
func TestAnAgentIsKilledAtAnyPoint(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	written := 0
	for round := 0; round < 25 || written == 0; round++ {
		after := time.Duration(round*7) * time.Millisecond
		if round >= 25 { // on a slow machine, all were killed before they had written anything
			if after = 200 * time.Millisecond << (round - 25); after > time.Minute {
				t.Fatal("no agent has written anything in a minute")
			}
		}
		agent := exec.CommandContext(t.Context(), os.Args[0], "create-volumes", dir) //nolint:gosec // this test
		var problems strings.Builder
		agent.Stderr = &problems
		out, err := agent.StdoutPipe()
		if err := errors.Join(err, agent.Start()); err != nil {
			t.Fatal(err)
		}
		killed := make(chan error, 1)
		time.AfterFunc(after, func() { killed <- agent.Process.Signal(syscall.SIGKILL) })
		text, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		written += strings.Count(string(text), "\n")
		_ = agent.Wait() // it was killed
		if err := <-killed; err != nil || problems.String() != "" {
			t.Fatalf("%v: %s", err, problems.String())
		}
		s.Clear()
		path := provide(t, s, sized("kept", 4<<20))
		b, err := os.ReadFile(filepath.Join(path, "diary"))
		if err != nil && written > 0 || len(b) < written {
			t.Fatalf("%d of %d lines are left, %v", len(b), written, err)
		}
		written = len(b) // one may be written and not counted
		list, err := os.ReadDir(dir)
		for _, f := range list {
			id := strings.TrimPrefix(f.Name(), ".sized-")
			if _, err := os.Stat(filepath.Join(dir, id)); id != "kept" && id != "passing" || err != nil {
				t.Fatalf("%s is left", f.Name())
			}
		}
		if mounts := mountsIn(t, dir); err != nil || len(mounts) > len(list) {
			t.Fatalf("mounted are %q, %v", mounts, err)
		}
	}
}

func TestAMachineThatCannotLimitAVolumeSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o777); err != nil { //nolint:gosec // another user writes to it
			t.Fatal(err)
		}
	}
	// Where the program is, others cannot read it. Another process copies it: a child that this one
	// forks meanwhile could hold a copy that it writes itself open, and nobody could run that.
	if out, err := exec.CommandContext(t.Context(), "install", "-m", "0755", os.Args[0], filepath.Join(dir, "agent")).CombinedOutput(); err != nil { //nolint:gosec // this test
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "agent"), "create-volumes", filepath.Join(dir, "volumes")) //nolint:gosec // this test
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	want := "its size of 4 MiB cannot be enforced on this node: the agent does not run as root and cannot mount a file system; run it as root, or remove size from the volume in the manifest"
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("it says %q, %v", out, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "volumes", ".*")); len(left) != 0 {
		t.Errorf("left are %q", left)
	}
}
