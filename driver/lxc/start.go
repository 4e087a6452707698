package lxc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/imagestore"
	"mariposa/driver/lockfile"
)

// Start creates the container of an instance and starts it, or starts the one that has ended.
func (d *Driver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return d.operate(ctx, i.ID, func(ctx context.Context, e *entry) error {
		if e.live {
			return nil // it is running, or has just ended, which is reported as an event
		}
		if why := d.Unavailable(); why != "" {
			return errors.New("this node cannot run it: " + why)
		}
		if e.damaged != "" {
			return errors.New(e.damaged)
		}
		if err := checkWorkload(i); err != nil {
			return err
		}
		if len(i.Workload.Ports) > 0 {
			i.Workload = i.Workload.WithPort(i.Workload.Ports[0].Target)
		}
		if e.record.ID != "" && e.record.Ref != i.Workload.Image { // its files are those of another image
			if err := d.removeTraces(e); err != nil {
				return err
			}
		}
		first := e.record.ID == ""
		err := d.start(ctx, e, i)
		if err != nil && !errors.Is(context.Cause(ctx), errClosed) {
			d.undoStart(e, first, err)
		}
		return err
	})
}

// checkWorkload refuses what no system container can have.
func checkWorkload(i driver.Instance) error {
	w := i.Workload
	if w == nil {
		return errors.New("this node does not have the definition of the instance")
	}
	for _, p := range w.Ports {
		if p.Host != 0 {
			return fmt.Errorf("it cannot publish port %d of the node: a system container is reached at its own address; write %d alone in `ports`", p.Host, p.Target)
		}
	}
	for _, words := range [][]string{w.Command, w.Entrypoint} {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(word, "\x00") }) {
			return errors.New("its command cannot contain a NUL character")
		}
	}
	return nil
}

// start makes an instance run.
func (d *Driver) start(ctx context.Context, e *entry, i driver.Instance) error {
	image, err := d.imageOf(e, i.Workload.Image)
	if err != nil {
		return err
	}
	lower, err := d.extracted(ctx, image, nil)
	if err != nil {
		return err
	}
	r, err := d.describe(ctx, e, i, image, lower)
	if err != nil {
		return err
	}
	if e.record.ID == "" {
		if err := d.makeDirectory(ctx, e, &r, image, lower); err != nil {
			return fmt.Errorf("cannot create the directory of instance %s: %w", e.id, err)
		}
	} else if err := writeJSON(filepath.Join(e.dir, recordFile), r); err != nil {
		return fmt.Errorf("cannot record the instance on this node: %w", err)
	}
	e.record = r
	if r.User, err = resolveUser(roots(e.dir, r.Rootfs, lower), i.Workload.User); err != nil {
		return err
	}
	e.record = r
	request, err := d.request(e, i, lower)
	if err != nil {
		return err
	}
	g := d.groupOf(e.id)
	if err := g.killAll(); err != nil { // of the last run; it would share the files and the address with them
		return fmt.Errorf("processes of its last run cannot be killed: restart the machine: %w", err)
	}
	if err := g.make(); err != nil {
		return err
	}
	e.limits = g.limit(r.Memory, r.MilliCPU)
	if err := writeJSON(filepath.Join(e.dir, recordFile), r); err != nil {
		return fmt.Errorf("cannot record the instance on this node: %w", err)
	}
	return d.launch(ctx, e, request)
}

// imageOf returns the image of an instance: the one that it was created from, or the one with the
// name now. It cannot be removed while the instance exists.
func (d *Driver) imageOf(e *entry, ref string) (*imagestore.Image, error) {
	if e.record.Image != "" {
		ref = e.record.Image
	}
	i, err := d.findImage(ref)
	if err != nil {
		return nil, err
	}
	if err := d.options.Images.Hold(i, d.holder(e.id)); err != nil {
		return nil, fmt.Errorf("cannot use image %s: %w", i.Name, err)
	}
	return i, nil
}

// holder is the name of an instance in the image store, which other nodes may use too.
func (d *Driver) holder(id string) string {
	return fmt.Sprintf("lxc-%08x-%s", hashOf(d.options.Dir), id)
}

// describe returns the record of the next run of an instance.
func (d *Driver) describe(ctx context.Context, e *entry, i driver.Instance, image *imagestore.Image, lower string) (record, error) {
	w := i.Workload
	r := record{
		ID: i.ID, Name: i.Name, Project: i.Project, Service: i.Service, Labels: i.Labels, Origin: i.Origin, Run: e.record.Run + 1, ManualRestarts: i.ManualRestarts,
		Ref: w.Image, Image: image.ID, Rootfs: rootfsOverlay, HasInit: len(w.Entrypoint) == 0 && hasInit(lower),
		Dir: w.WorkingDir, Memory: w.Memory, MilliCPU: w.MilliCPU, Private: d.privatePath(e),
	}
	if !r.HasInit && len(w.Command)+len(w.Entrypoint) == 0 {
		return r, errors.New("its image has no init (/sbin/init, /bin/init or /init): set `command`")
	}
	is := d.supported()
	if is.userNS && !is.overlay {
		r.Rootfs = rootfsCopy
	}
	if e.record.ID != "" { // its files are there
		r.Rootfs = e.record.Rootfs
	}
	for _, v := range variables(i, w) {
		if v.name == "PATH" {
			r.Path = v.value
		}
		r.Variables = append(r.Variables, v.name)
		r.Sourced = r.Sourced || !v.isOneLine()
	}
	for _, p := range w.Ports {
		r.Ports = append(r.Ports, p.Target)
	}
	for _, v := range i.Volumes {
		r.Volumes = append(r.Volumes, v.Volume)
	}
	var err error
	if r.Links, err = d.connect(ctx, e, i); err != nil {
		return r, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e.held.volumes = r.Volumes
	r.IDs, err = d.assignIDs(e, is)
	return r, err
}

// roots returns where the files of an instance are: first those that it has changed.
func roots(dir string, kind rootfsKind, lower string) []string {
	if kind == rootfsCopy {
		return []string{filepath.Join(dir, rootfsDir)}
	}
	return []string{filepath.Join(dir, upperDir), lower}
}

// makeDirectory creates the directory of an instance. It gets its final name only when it is
// complete, so that every directory that an agent finds has a record.
func (d *Driver) makeDirectory(ctx context.Context, e *entry, r *record, image *imagestore.Image, lower string) error {
	tmp := filepath.Join(filepath.Dir(e.dir), newPrefix+e.id)
	if err := removeAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	if r.Rootfs == rootfsCopy {
		if err := d.extractTo(ctx, image, filepath.Join(tmp, rootfsDir), r.IDs, nil); err != nil {
			return err
		}
	} else if err := makeUpper(tmp, r, lower); err != nil {
		return err
	}
	if err := unix.Mkfifo(filepath.Join(tmp, consoleFile), 0o600); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(tmp, recordFile), r); err != nil {
		return err
	}
	return os.Rename(tmp, e.dir)
}

// makeUpper creates the directories of an overlay. The root directory is as that of the image.
func makeUpper(dir string, r *record, lower string) error {
	info, err := os.Stat(lower)
	if err != nil {
		return err
	}
	upper := filepath.Join(dir, upperDir)
	if err := errors.Join(os.Mkdir(upper, 0o700), os.Mkdir(filepath.Join(dir, workDir), 0o700)); err != nil {
		return err
	}
	return give(upper, r.shifted(ownerOf(info)), info.Mode())
}

// request writes the files of an instance and its configuration, and returns what its supervisor
// is to do.
func (d *Driver) request(e *entry, i driver.Instance, lower string) (*request, error) {
	r, w := &e.record, i.Workload
	all := variables(i, w)
	if err := d.writePrivate(r, i, all); err != nil {
		return nil, err
	}
	c := container{
		Hostname: hostname(i.Name, i.ID), HasInit: r.HasInit, IDs: r.IDs, Links: r.Links, Console: filepath.Join(e.dir, consoleFile),
		Group: d.groupOf(e.id), Seccomp: d.supported().seccomp, User: r.User, Dir: r.Dir,
	}
	for n := range r.Links {
		c.Pairs = append(c.Pairs, pairName(d.options.Dir+e.id, r.Run, n))
	}
	for _, v := range all {
		if v.isOneLine() {
			c.Variables = append(c.Variables, v.name+"="+v.value)
		}
	}
	q := &request{
		Record: *r, Lower: lower, Group: c.Group.name, LogSize: d.options.LogSize, LogFiles: d.options.LogFiles,
		Command: firstProcess(r, w, lower), Script: script(r, w),
	}
	var err error
	if q.Binds, c.Mounts, err = binds(r, i); err != nil {
		return nil, err
	}
	text, err := c.config()
	if err == nil {
		err = replaceFile(filepath.Join(r.Private, configFile), []byte(text), 0o600, owner{})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write the configuration of its container: %w", err)
	}
	return q, nil
}

// firstProcess returns what a container runs: the init of its image; or its entrypoint with its
// command, or its command if the image has no init.
func firstProcess(r *record, w *mariposa.Workload, lower string) []string {
	if !r.HasInit {
		return r.sourced(slices.Concat(w.Entrypoint, w.Command))
	}
	return []string{initPath(lower)}
}

// script returns what an instance runs once, after its first boot.
func script(r *record, w *mariposa.Workload) []string {
	if !r.HasInit {
		return nil
	}
	return w.Command
}

// sourced returns a command that first reads the variables which LXC cannot pass on.
func (r *record) sourced(command []string) []string {
	if !r.Sourced {
		return command
	}
	return slices.Concat([]string{"/bin/sh", "-c", `. "$0" && exec "$@"`, filepath.Join(nativeDir, ownDir, environmentFile)}, command)
}

// binds returns what a container sees of the node: for its supervisor, and for its configuration.
func binds(r *record, i driver.Instance) (all []bind, mounts []mountEntry, err error) {
	add := func(b bind, target, options string) {
		if b.ReadOnly {
			options += ",ro"
		}
		mounts = append(mounts, mountEntry{bindSource(len(all)), target, options})
		all = append(all, b)
	}
	add(bind{Source: filepath.Join(r.Private, privateNative), ReadOnly: true}, nativeDir, "bind,create=dir")
	if path := filepath.Join(r.Private, resolvFile); isFile(path) {
		add(bind{Source: path, ReadOnly: true}, "/etc/resolv.conf", "bind,create=file,optional") // an init may have its own
	}
	for _, v := range i.Volumes {
		if !filepath.IsAbs(v.Path) || filepath.Clean(v.Path) == "/" {
			return nil, nil, fmt.Errorf("cannot mount its volume %s at %q: the path must be absolute, such as /var/lib/data", v.Name, v.Path)
		}
		add(bind{Source: v.Source, ReadOnly: v.ReadOnly, Volume: v.Name}, filepath.Clean(v.Path), "bind,create=dir")
	}
	for n, f := range i.Workload.Files {
		add(bind{Source: filepath.Join(r.Private, privateFiles, strconv.Itoa(n)), ReadOnly: true}, filepath.Clean(f.Name), "bind,create=file")
	}
	return all, mounts, nil
}

// launch starts a supervisor, passes it the lock and its request, and waits for its report.
func (d *Driver) launch(ctx context.Context, e *entry, q *request) error {
	lock, err := lockfile.Within(filepath.Join(e.dir, lockFile), supervisorTimeout)
	if err != nil {
		return fmt.Errorf("cannot start instance %s: %w", e.id, err)
	}
	defer lock.Close() // the supervisor has its own copy
	file, err := writeRequest(q)
	if err != nil {
		return fmt.Errorf("cannot send the start request to the supervisor: %w", err)
	}
	defer file.Close() // the same
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close() // it was only read
	pid, err := d.spawn(e.dir, lock, writer, file)
	_ = writer.Close() // the supervisor has its own copy
	if err != nil {
		return fmt.Errorf("cannot start the supervisor: %w", err)
	}
	p, _, _ := readProc(pid) // our child: its pid is not reused
	e.state = state{Supervisor: p.pid, SupervisorStart: p.start}
	pidfd, ok := p.open()
	if !ok { // its end would not be noticed
		_ = syscall.Kill(pid, syscall.SIGKILL) // our child: it is there until it is waited for
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		return errors.New("the supervisor of its container ended at once, or cannot be watched: " + lastLine(filepath.Join(e.dir, supervisorLog)))
	}
	d.watch(e, pidfd)
	stop := context.AfterFunc(ctx, func() { _ = reader.SetReadDeadline(time.Now()) })
	defer stop()
	b, err := io.ReadAll(reader)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	var answer report
	if json.Unmarshal(b, &answer) != nil {
		return errors.New("the supervisor of its container failed: " + lastLine(filepath.Join(e.dir, supervisorLog)))
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	e.state, e.live = answer.State, true
	d.refresh(e)
	d.watchInit(e)
	return nil
}

// writeRequest writes a request into an anonymous file in memory: it is complete before a
// supervisor starts.
func writeRequest(q *request) (*os.File, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("request", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "request") //nolint:gosec // a file descriptor is positive
	if _, err = f.Write(b); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close() // the error is returned
		return nil, err
	}
	return f, nil
}

// spawn starts a supervisor in its own session and mount namespace. Its environment is built from
// scratch, because the agent's may contain tokens.
func (d *Driver) spawn(dir string, lock, report, request *os.File) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close() // it was only passed on
	log, err := os.OpenFile(filepath.Join(dir, supervisorLog), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close() // the same
	pid, _, err = syscall.StartProcess(d.ownExecutable(), []string{"mariposa", SupervisorCommand, dir}, &syscall.ProcAttr{
		Dir: "/",
		// One scheduler thread and a frequent garbage collection keep a supervisor small.
		Env:   []string{"GOMAXPROCS=1", "GOGC=20"},
		Files: []uintptr{null.Fd(), null.Fd(), log.Fd(), lock.Fd(), report.Fd(), request.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS},
	})
	return pid, err
}

// undoStart cleans up a failed start. Nothing is left of a first start; an instance that had run
// before records why it could not be restarted.
func (d *Driver) undoStart(e *entry, first bool, cause error) {
	e.live = false
	if e.pidfd != nil {
		e.supervisor().kill(unix.SIGKILL)
		<-e.gone
		e.unwatch()
	}
	g := d.groupOf(e.id)
	_ = g.killAll() // what is left is found when it is removed
	_ = g.remove()
	if first {
		if d.removeTraces(e) == nil {
			return
		}
	}
	e.exit = exit{Run: e.record.Run, Reason: cause.Error(), At: time.Now().UTC()}
	_ = writeJSON(filepath.Join(e.dir, exitFile), e.exit) // the next start tries again
	d.refresh(e)
}

// lastLine returns the last line of a file, for an error.
func lastLine(path string) string {
	b, _ := os.ReadFile(path) // it may be empty
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if text := lines[len(lines)-1]; text != "" {
		return text
	}
	return "it was killed"
}
