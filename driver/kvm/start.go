package kvm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/imagestore"
	"mariposa/driver/ostool"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// Start creates the machine of an instance and starts it, or starts the one that has ended.
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
		if err := d.checkWorkload(i); err != nil {
			return err
		}
		if len(i.Workload.Ports) > 0 {
			i.Workload = i.Workload.WithPort(i.Workload.Ports[0].Target)
		}
		if e.record.ID != "" && e.record.Ref != i.Workload.Image { // its disk is that of another image
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

// checkWorkload refuses what no machine can have.
func (d *Driver) checkWorkload(i driver.Instance) error {
	w := i.Workload
	if w == nil {
		return errors.New("this node does not have the definition of the instance")
	}
	for _, p := range w.Ports {
		if p.Host != 0 && d.options.Networks != nil {
			return fmt.Errorf("it cannot publish port %d of the node: a virtual machine is reached at its own address; write %d alone in `ports`", p.Host, p.Target)
		}
	}
	if len(i.Networks) > 0 && d.options.Networks == nil {
		return errors.New("it cannot join networks on this node, whose agent was started with --kvm-network user")
	}
	for _, words := range [][]string{w.Command, w.Entrypoint} {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(word, "\x00") }) {
			return errors.New("its command cannot contain a NUL character")
		}
	}
	if w.User != "" {
		return errors.New("`user` means nothing for a virtual machine: leave it out")
	}
	return nil
}

// start makes an instance run.
func (d *Driver) start(ctx context.Context, e *entry, i driver.Instance) error {
	image, err := d.imageOf(e, i.Workload.Image)
	if err != nil {
		return err
	}
	r, err := d.describe(ctx, e, i, image)
	if err != nil {
		return err
	}
	if e.record.ID == "" {
		if err := d.makeDirectory(ctx, e, &r, image); err != nil {
			return fmt.Errorf("cannot create the directory of instance %s: %w", e.ID, err)
		}
	} else if err := statefile.Write(filepath.Join(e.Dir, recordFile), r); err != nil {
		return fmt.Errorf("cannot record the instance on this node: %w", err)
	}
	e.record = r
	q, err := d.request(e, i, image)
	if err != nil {
		return err
	}
	g := d.groupOf(e.ID)
	if err := g.KillAll(); err != nil { // of the last run; it would share the disk and the address with it
		return fmt.Errorf("processes of its last run cannot be killed: restart the node: %w", err)
	}
	if err := g.Make(true); err != nil {
		return err
	}
	e.limits = g.Limit(0, r.MilliCPU) // its memory is that of the machine
	return d.launch(ctx, e, q)
}

// findImage returns an image that a machine can have.
func (d *Driver) findImage(ref string) (*imagestore.Image, error) {
	if ref == "" {
		return nil, errors.New("it has no image: set `image`")
	}
	i, err := d.options.Images.Find(ref)
	if err != nil {
		return nil, err
	}
	if i.Kind != imagestore.Disk && i.Kind != imagestore.Kernel {
		return nil, fmt.Errorf("image %s is not for virtual machines: it contains a %s, not a disk or a kernel", i.Name, i.Kind)
	}
	return i, nil
}

// EnsureImage checks that the node has an image. There is nothing to fetch.
func (d *Driver) EnsureImage(ctx context.Context, image string, _ *mariposa.Login, _ func(driver.Progress)) error {
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	_, err = d.findImage(image)
	return err
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
	return fmt.Sprintf("kvm-%08x-%s", hash(d.options.Dir), id)
}

// describe returns the record of the next run of an instance.
func (d *Driver) describe(ctx context.Context, e *entry, i driver.Instance, image *imagestore.Image) (record, error) {
	w := i.Workload
	r := record{
		ID: i.ID, Name: i.Name, Project: i.Project, Service: i.Service, Labels: i.Labels, Origin: i.Origin, Run: e.record.Run + 1, ManualRestarts: i.ManualRestarts,
		Ref: w.Image, Image: image.ID, HasDisk: image.Kind == imagestore.Disk, Memory: w.Memory, MilliCPU: w.MilliCPU,
		CPUs: max(1, int((w.MilliCPU+999)/1000)), Accel: d.supported().accel, Private: d.privatePath(e),
	}
	if r.Memory == 0 {
		r.Memory = defaultMemory
	}
	for _, p := range w.Ports {
		r.Ports = append(r.Ports, p.Target)
	}
	for _, v := range i.Volumes {
		r.Volumes = append(r.Volumes, v.Volume)
	}
	var err error
	if d.options.Networks != nil {
		if r.Links, err = d.options.Networks.Connect(ctx, owned(e.ID), i); err != nil {
			return r, err
		}
	}
	d.roster.Lock()
	defer d.roster.Unlock()
	if d.options.Networks == nil {
		if r.Forwards, err = d.assignPorts(e, i); err != nil {
			return r, err
		}
	}
	e.held.links, e.held.forwards, e.held.volumes = r.Links, r.Forwards, r.Volumes
	r.UID, err = d.assignUID(e)
	return r, err
}

// firstUID is the first of the users that QEMU processes run as. They are beyond those of people,
// of process instances and of system containers.
const (
	firstUID = 0x7f000000
	uidCount = 0x00ff0000
)

// assignUID returns the user of an instance, or one that no other instance of the node has. The
// caller holds the roster's mutex.
func (d *Driver) assignUID(e *entry) (int, error) {
	if e.held.uid != 0 {
		return e.held.uid, nil
	}
	used := map[int]bool{}
	d.roster.Each(func(other *entry) { used[other.held.uid] = true })
	at := int(hash(d.options.Scope+d.options.Dir) % uidCount)
	for n := range uidCount {
		if uid := firstUID + (at+n)%uidCount; !used[uid] {
			e.held.uid = uid
			return uid, nil
		}
	}
	return 0, errors.New("this node has no users left for another virtual machine")
}

// assignPorts returns the ports of the node that lead to an instance: those that it has, those
// that its manifest names, or free ones. The caller holds the roster's mutex.
func (d *Driver) assignPorts(e *entry, i driver.Instance) (all []forward, err error) {
	used := map[int]bool{}
	d.roster.Each(func(other *entry) {
		for _, f := range other.held.forwards {
			used[f.Port] = used[f.Port] || other != e
		}
	})
	for _, p := range i.Workload.Ports {
		f := forward{Address: d.options.Publish.String(), Port: p.Host, Target: p.Target}
		for _, old := range e.held.forwards {
			if old.Target == p.Target && f.Port == 0 && !used[old.Port] {
				f.Port = old.Port
			}
		}
		for f.Port == 0 {
			port, err := freePort(f.Address)
			if err != nil {
				return nil, err
			}
			if !used[port] {
				f.Port = port
			}
		}
		if used[f.Port] {
			return nil, fmt.Errorf("port %d of the node is taken by another virtual machine", f.Port)
		}
		used[f.Port] = true
		all = append(all, f)
	}
	return all, nil
}

func freePort(address string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return 0, fmt.Errorf("cannot find a free port of the node: %w", err)
	}
	defer l.Close() // QEMU opens it
	return l.Addr().(*net.TCPAddr).Port, nil
}

// makeDirectory creates the directory of an instance. It gets its final name only when it is
// complete, so that every directory that an agent finds has a record.
func (d *Driver) makeDirectory(ctx context.Context, e *entry, r *record, image *imagestore.Image) error {
	tmp := filepath.Join(filepath.Dir(e.Dir), newPrefix+e.ID)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	if r.HasDisk {
		base := d.options.Images.Path(image, imagestore.DiskFile)
		if _, err := ostool.Run(ctx, imgProgram, "create", "-q", "-f", "qcow2", "-F", image.Options[imagestore.FormatOption], "-b", base, filepath.Join(tmp, diskFile)); err != nil {
			return err
		}
	}
	if err := statefile.Write(filepath.Join(tmp, recordFile), r); err != nil {
		return err
	}
	return os.Rename(tmp, e.Dir)
}

// request writes the private files of an instance, and returns what its supervisor is to do.
func (d *Driver) request(e *entry, i driver.Instance, image *imagestore.Image) (*request, error) {
	r := &e.record
	q := &request{
		Record: *r, UUID: machineUUID(r.ID), Fixed: d.fixed(r, i), Group: d.groupOf(e.ID).Name, LogSize: d.options.LogSize, LogFiles: d.options.LogFiles,
	}
	store := d.options.Images
	if r.HasDisk {
		q.Files.Base, q.Files.BaseFormat = store.Path(image, imagestore.DiskFile), image.Options[imagestore.FormatOption]
	} else {
		servers, _ := d.resolver(i, r.Links)
		q.Files.Kernel, q.Append = store.Path(image, imagestore.KernelFile), bootArguments(image.Options[imagestore.AppendOption], r, servers)
		if _, has := image.File(imagestore.InitrdFile); has {
			q.Files.Initrd = store.Path(image, imagestore.InitrdFile)
		}
		// QEMU opens them by the names of its open files, for which their own permissions count.
		// Nobody else reaches them, because their directory is root's.
		for _, path := range []string{q.Files.Kernel, q.Files.Initrd} {
			if path != "" {
				if err := os.Chmod(path, 0o444); err != nil { //nolint:gosec // see above
					return nil, fmt.Errorf("cannot let QEMU read the kernel: %w", err)
				}
			}
		}
	}
	for _, v := range i.Volumes {
		q.Files.Volumes = append(q.Files.Volumes, volumeFile{v.Name, filepath.Join(v.Source, volumeDisk), v.ReadOnly})
	}
	if err := os.RemoveAll(r.Private); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.Private, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the directory of its files: %w", err)
	}
	content, err := d.seed(r, i, i.Mdata.Values)
	if err == nil {
		q.Files.Seed = filepath.Join(r.Private, seedFile)
		err = statefile.Replace(q.Files.Seed, content, 0o600, 0, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write its configuration: %w", err)
	}
	return q, writeValues(r, i.Mdata.Values)
}

// machineUUID returns the UUID of a machine: the id of its instance, if that is one.
func machineUUID(id string) string {
	if u, err := uuid.Parse(id); err == nil {
		return u.String()
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte("mariposa/"+id)).String()
}

// launch starts the supervisor of an instance, and waits until the machine runs.
func (d *Driver) launch(ctx context.Context, e *entry, q *request) error {
	starter := supervise.Starter{Executable: d.executable, Command: SupervisorCommand}
	if err := e.Launch(ctx, starter, q, func(pidfd *os.File) { d.watch(e, pidfd) }); err != nil {
		return err
	}
	e.paused = ""
	d.refresh(e)
	d.watchChanges(e)
	return nil
}

// undoStart cleans up a failed start. Nothing is left of a first start; an instance that had run
// before records why it could not be restarted.
func (d *Driver) undoStart(e *entry, first bool, cause error) {
	e.Abort()
	g := d.groupOf(e.ID)
	_ = g.KillAll() // what is left is found when it is removed
	_ = g.Remove()
	if first && d.removeTraces(e) == nil {
		return
	}
	e.RecordEnd(e.record.Run, cause.Error())
	d.refresh(e)
}
