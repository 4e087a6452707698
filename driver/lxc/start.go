package lxc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/imagestore"
	"mariposa/driver/mdata"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// Start creates the container of an instance and starts it, or starts the one that has ended.
func (d *Driver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return d.operate(ctx, i.ID, func(ctx context.Context, e *entry) error {
		if e.Live {
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
			return fmt.Errorf("cannot create the directory of instance %s: %w", e.ID, err)
		}
	} else if err := statefile.Write(filepath.Join(e.Dir, recordFile), r); err != nil {
		return fmt.Errorf("cannot record the instance on this node: %w", err)
	}
	e.record = r
	if r.User, err = resolveUser(roots(e.Dir, r.Rootfs, lower), i.Workload.User); err != nil {
		return err
	}
	e.record = r
	request, err := d.request(e, i, lower)
	if err != nil {
		return err
	}
	g := d.groupOf(e.ID)
	if err := g.KillAll(); err != nil { // of the last run; it would share the files and the address with them
		return fmt.Errorf("processes of its last run cannot be killed: restart the machine: %w", err)
	}
	if err := g.Make(false); err != nil {
		return err
	}
	e.limits = g.Limit(r.Memory, r.MilliCPU)
	if err := statefile.Write(filepath.Join(e.Dir, recordFile), r); err != nil {
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
	if err := d.options.Images.Hold(i, d.holder(e.ID)); err != nil {
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
	if r.Links, err = d.options.Networks.Connect(ctx, owned(e.ID), i); err != nil {
		return r, err
	}
	d.roster.Lock()
	defer d.roster.Unlock()
	e.held.links, e.held.volumes = r.Links, r.Volumes
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
	tmp := filepath.Join(filepath.Dir(e.Dir), newPrefix+e.ID)
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
	if err := statefile.Write(filepath.Join(tmp, recordFile), r); err != nil {
		return err
	}
	return os.Rename(tmp, e.Dir)
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
		Hostname: hostname(i.Name, i.ID), HasInit: r.HasInit, IDs: r.IDs, Links: r.Links, Console: filepath.Join(e.Dir, consoleFile),
		Group: d.groupOf(e.ID), Seccomp: d.supported().seccomp, User: r.User, Dir: r.Dir,
	}
	for n := range r.Links {
		c.Pairs = append(c.Pairs, pairName(d.options.Dir+e.ID, r.Run, n))
	}
	for _, v := range all {
		if v.isOneLine() {
			c.Variables = append(c.Variables, v.name+"="+v.value)
		}
	}
	q := &request{
		Record: *r, Lower: lower, Group: c.Group.Name, LogSize: d.options.LogSize, LogFiles: d.options.LogFiles,
		Command: firstProcess(r, w, lower), Script: script(r, w), Fixed: d.describeGuest(r, i),
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

// describeGuest returns what a container can read of itself over the metadata protocol.
func (d *Driver) describeGuest(r *record, i driver.Instance) map[string]string {
	g := mdata.Guest{ID: r.ID, Name: r.Name, Hostname: hostname(i.Name, i.ID), Image: r.Image, Links: r.Links}
	g.Resolvers, _ = d.options.Networks.Resolver(i, r.Links)
	return g.Fixed()
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

// launch starts the supervisor of an instance, and waits until the container runs.
func (d *Driver) launch(ctx context.Context, e *entry, q *request) error {
	starter := supervise.Starter{Executable: d.executable, Command: SupervisorCommand, Cloneflags: unix.CLONE_NEWNS}
	if err := e.Launch(ctx, starter, q, func(pidfd *os.File) { d.watch(e, pidfd) }); err != nil {
		return err
	}
	d.refresh(e)
	d.watchInit(e)
	return nil
}

// undoStart cleans up a failed start. Nothing is left of a first start; an instance that had run
// before records why it could not be restarted.
func (d *Driver) undoStart(e *entry, first bool, cause error) {
	e.Abort()
	g := d.groupOf(e.ID)
	_ = g.KillAll() // what is left is found when it is removed
	_ = g.Remove()
	if first {
		if d.removeTraces(e) == nil {
			return
		}
	}
	e.RecordEnd(e.record.Run, cause.Error())
	d.refresh(e)
}
