package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// sandbox is what an isolated instance sees and may do.
type sandbox struct {
	Mode      mode     `json:"mode"`
	UID       int      `json:"uid"`
	GID       int      `json:"gid"`
	Work      string   `json:"work"` // its working directory and home
	Binds     []bind   `json:"binds"`
	Writable  []string `json:"writable"` // directories that Landlock lets it write to
	Ports     []int    `json:"ports"`    // ports that Landlock lets it listen on
	TmpSize   int64    `json:"tmp_size"`
	Resolv    string   `json:"resolv,omitempty"` // its /etc/resolv.conf; empty: the machine's
	Processes int64    `json:"processes"`
}

// bind is a part of the machine's file system that an instance sees.
type bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	Kind     kind   `json:"kind,omitempty"`
	Optional bool   `json:"optional,omitempty"` // skipped if it does not exist
	Owner    int    `json:"owner,omitempty"`    // for bindMapped: the owner whose files appear as the instance's own
}

// kind is how a part is mounted.
type kind string

const (
	bindReadOnly kind = ""
	bindWritable kind = "writable"
	bindMapped   kind = "mapped" // writable, and its files appear as the instance's own
	bindDevice   kind = "device"
	bindMask     kind = "mask" // replaced by an empty directory
	bindLink     kind = "link" // a symbolic link to Source
)

// systemDirs contain programs and what they need.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/srv", "/nix", "/gnu"}

// systemFiles are the parts of /etc and /sys that programs read. None is secret. The
// files of users and groups are created for each instance.
var systemFiles = []string{
	"/etc/alternatives", "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/debian_version", "/etc/fonts",
	"/etc/gai.conf", "/etc/host.conf", "/etc/hostname", "/etc/hosts", "/etc/inputrc", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/locale.alias", "/etc/locale.conf", "/etc/localtime", "/etc/magic", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/perl",
	"/etc/pki", "/etc/profile", "/etc/protocols", "/etc/python3", "/etc/resolv.conf", "/etc/services", "/etc/ssl", "/etc/terminfo", "/etc/timezone",
	"/sys/devices/system/cpu",
}

// devices are those that every program may expect.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// systemBinds returns what every instance sees of the machine.
func systemBinds() []bind {
	var list []bind
	for _, path := range systemDirs {
		if to, err := os.Readlink(path); err == nil {
			list = append(list, bind{Source: to, Target: path, Kind: bindLink})
			continue
		}
		list = append(list, bind{Source: path, Target: path, Optional: true})
	}
	files := systemFiles
	java, _ := filepath.Glob("/etc/java*") // the pattern is valid
	for _, path := range append(slices.Clone(files), java...) {
		list = append(list, bind{Source: path, Target: path, Optional: true})
	}
	for _, path := range devices {
		list = append(list, bind{Source: path, Target: path, Kind: bindDevice})
	}
	return list
}

// sandbox returns the sandbox of an instance, or nil if instances are not isolated.
func (d *Driver) sandbox(e *entry, i driver.Instance) (*sandbox, error) {
	if e.spec.Mode == modeNone {
		return nil, nil //nolint:nilnil // a plain process has no sandbox
	}
	s := d.confinement(e.dir, &e.spec)
	s.Binds = systemBinds()
	if s.Resolv = d.resolvConf(i); s.Resolv != "" {
		s.Binds = slices.DeleteFunc(s.Binds, func(b bind) bool { return b.Target == resolvFile })
	}
	for _, path := range d.options.Paths {
		s.Binds = append(s.Binds, bind{Source: path, Target: path})
	}
	program, err := d.programBind(s, i)
	if err != nil {
		return nil, err
	}
	s.Binds = append(s.Binds, program...)
	for _, h := range d.hidden {
		s.Binds = append(s.Binds, masks(s.Binds, h)...)
	}
	s.Binds = append(s.Binds, bind{Source: s.Work, Target: s.Work, Kind: bindWritable}, bind{Source: e.spec.Private, Target: e.spec.Private})
	for _, source := range e.spec.Volumes {
		b, err := d.volumeBind(e.spec.UID, source)
		if err != nil {
			return nil, err
		}
		s.Binds = append(s.Binds, b)
	}
	return s, nil
}

// resolvFile has the name servers of a machine.
const resolvFile = "/etc/resolv.conf"

// resolvConf returns the name servers of an instance: the node, and for the time when no agent
// runs, those of the machine. It is empty if the instance cannot ask the node, which knows it by its
// uid.
func (d *Driver) resolvConf(i driver.Instance) string {
	if d.options.Names == nil || d.support.mode != modeRoot || len(i.Search) == 0 {
		return ""
	}
	own := d.options.Names.Loopback()
	if !own.IsValid() {
		return ""
	}
	const most = 3 // that resolvers read
	servers, search := i.Resolver(own, nil)
	for _, s := range driver.MachineNameServers(true) {
		if len(servers) < most && !slices.Contains(servers, s) {
			servers = append(servers, s)
		}
	}
	return driver.ResolvConf(servers, search)
}

// confinement returns the part of a sandbox that also applies to commands that people run
// in the instance.
func (d *Driver) confinement(dir string, s *spec) *sandbox {
	c := &sandbox{
		Mode: s.Mode, UID: s.UID, GID: s.UID, Work: filepath.Join(dir, workDir),
		TmpSize: d.options.TmpSize, Processes: s.Processes,
	}
	if s.Mode == modeUser {
		c.GID = os.Getegid()
	}
	c.Writable = append([]string{"/tmp", "/dev", "/proc", c.Work}, s.Volumes...)
	for _, p := range s.Ports {
		c.Ports = append(c.Ports, p.Port)
	}
	return c
}

// masks hides a directory or file wherever a part of the machine would show it.
func masks(binds []bind, hidden string) []bind {
	var list []bind
	info, err := os.Stat(hidden)
	if err != nil {
		return nil // there is nothing to hide
	}
	for _, b := range binds {
		if b.Kind != bindReadOnly {
			continue
		}
		source, err := filepath.EvalSymlinks(b.Source)
		if err == nil && contains(source, hidden) {
			mask := bind{Target: filepath.Join(b.Target, strings.TrimPrefix(hidden, source)), Kind: bindMask}
			if !info.IsDir() {
				mask.Source, mask.Kind = os.DevNull, bindDevice
			}
			list = append(list, mask)
		}
	}
	return list
}

// programBind makes the program of an instance's command visible to the instance if it
// would not be otherwise. A program next to our own binary was put there for instances;
// any other must be accessible to everybody. Paths that the instance's user cannot access
// are not examined, or the error would reveal what exists there. Programs in the
// instance's view, and missing ones, are left to the init.
func (d *Driver) programBind(s *sandbox, i driver.Instance) ([]bind, error) {
	name, env := i.Workload.Command[0], d.environment(i, filepath.Dir(s.Work), "", nil, true)
	named := strings.Contains(name, "/")
	if named {
		path := filepath.Clean(name)
		if !filepath.IsAbs(name) {
			path = filepath.Join(startDir(i, filepath.Dir(s.Work)), name)
		}
		if contains(s.Work, path) || contains("/proc", path) {
			return nil, nil
		}
		if d.isHidden(path) {
			return nil, refusal(fmt.Sprintf("cannot run %q: it is inside a directory of Mariposa, which instances cannot see", name))
		}
	}
	path, real, err := d.findProgram(s, name, env, startDir(i, filepath.Dir(s.Work)))
	sees := func(p string) bool {
		return slices.ContainsFunc(s.Binds, func(b bind) bool { return contains(b.Target, p) })
	}
	isOpen := err == nil && (filepath.Dir(path) == filepath.Dir(d.executable) || isOpenToAll(filepath.Dir(real)))
	switch {
	case err == nil && sees(path) && sees(real) && !d.isHidden(real), err != nil && sees(filepath.Clean(name)):
		return nil, nil
	case isOpen && !d.isHidden(real):
		return []bind{{Source: real, Target: path}}, nil
	case !named:
		return nil, nil
	case err != nil && !errors.Is(err, os.ErrPermission):
		return nil, refusal(err.Error())
	}
	return nil, refusal(fmt.Sprintf("cannot run %q: it is inside a directory that is closed to other users; put it below /opt or /srv, or start the node's agent with --process-path", name))
}

// findProgram finds a program on the machine: next to our own binary, or as the
// instance's user would. real is the path without symbolic links.
func (d *Driver) findProgram(s *sandbox, name string, env []string, dir string) (path, real string, err error) {
	find := func(name string) {
		if path, err = lookPath(name, env, dir); err == nil {
			real, err = filepath.EvalSymlinks(path)
		}
	}
	own := filepath.Dir(d.executable)
	beside := filepath.Join(own, filepath.Base(name))
	if filepath.Clean(name) == beside || (!strings.Contains(name, "/") && slices.Contains(env, "PATH="+d.searchPath(true))) {
		if find(beside); err == nil {
			return path, real, nil
		}
	}
	s.asInstance(func() { find(name) })
	return path, real, err
}

// asInstance calls f with the file permissions of the instance's user.
func (c *sandbox) asInstance(f func()) {
	if c.Mode != modeRoot {
		f()
		return
	}
	onOwnThread(func() { // the permissions of this thread only, which ends
		_, _, _ = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(c.GID), 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(c.UID), 0, 0)
		f()
	})
}

// isOpenToAll reports whether every user can enter a directory.
func isOpenToAll(dir string) bool {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
	}
	return true
}

// volumeBind mounts a volume or network as if the instance owned everything in it.
func (d *Driver) volumeBind(uid int, source string) (bind, error) {
	b := bind{Source: source, Target: source, Kind: bindWritable}
	if d.support.mode != modeRoot {
		return b, nil
	}
	info, err := os.Stat(source)
	if err != nil {
		return b, refusal("cannot open its volume: " + err.Error())
	}
	switch owner := ownerOf(info); {
	case owner == uid:
	case d.canMap(source):
		b.Kind, b.Owner = bindMapped, owner
	default: // the instance has the uid of its volumes
		if err := changeOwner(source, owner, uid); err != nil {
			return b, refusal("cannot open its volume: " + err.Error())
		}
	}
	return b, nil
}

// changeOwner changes the owner of a tree. Files of other owners keep theirs, as does a file
// with another hard link elsewhere.
func changeOwner(dir string, from, to int) error {
	return walkTree(dir, func(root *os.Root, path string) error {
		info, err := root.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if int(st.Uid) != from || (!info.IsDir() && st.Nlink > 1) {
			return nil
		}
		return root.Lchown(path, to, to)
	})
}

// walkTree visits everything in a directory, the directory itself first. Links never lead
// out of it, even if a running instance changes it meanwhile. Files that are removed
// meanwhile are skipped.
func walkTree(dir string, visit func(root *os.Root, path string) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var walk func(path string, isDir bool) error
	walk = func(path string, isDir bool) error {
		if err := visit(root, path); err != nil || !isDir {
			return err
		}
		f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		list, err := f.ReadDir(-1)
		_ = f.Close()
		for _, below := range list {
			if err := walk(filepath.Join(path, below.Name()), below.IsDir()); err != nil && !isGone(err) {
				return err
			}
		}
		return err
	}
	return walk(".", true)
}

// uidFor returns the uid of an instance: its own. If the file system of its volumes and
// networks does not support ID-mapped mounts, it is their uid, which the instance then
// shares with all others that use any.
func (d *Driver) uidFor(e *entry, i driver.Instance) (int, error) {
	if d.support.mode != modeRoot {
		return os.Geteuid(), nil
	}
	for _, source := range sources(i) {
		if _, err := os.Stat(source); err == nil && !d.canMap(source) {
			return d.options.UIDs.First, nil
		}
	}
	return d.assignUID(e)
}

// owner returns the owner of an instance's directories.
func (s *spec) owner() int {
	if s.Mode == modeRoot {
		return s.UID
	}
	return os.Geteuid()
}

// chownWork makes an instance the owner of its working directory, which may have had
// another owner.
func (d *Driver) chownWork(dir string, s *spec) error {
	work := filepath.Join(dir, workDir)
	info, err := os.Lstat(work)
	if err != nil || !info.IsDir() || ownerOf(info) == s.owner() {
		return err
	}
	return changeOwner(work, ownerOf(info), s.owner())
}

// chownTree gives a directory that we have just created to its owner.
func chownTree(dir string, owner int) error {
	if owner == os.Geteuid() {
		return nil
	}
	return changeOwner(dir, os.Geteuid(), owner)
}
