package lxc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// A container sees a directory of the node at nativeDir, and its files at their own paths, all
// read-only.
const (
	nativeDir       = "/native"
	mdataFile       = "mdata.json"
	environmentFile = "environment" // its variables, as a shell reads them
	ownDir          = "mariposa"    // below nativeDir: what the instance can read of itself
)

// These are in the private directory of an instance.
const (
	privateNative = "native"
	privateFiles  = "files"
	configFile    = "config"
	resolvFile    = "resolv.conf"
)

// privatePath returns the directory of an instance's configuration, files and values.
func (d *Driver) privatePath(e *entry) string {
	if dir := d.memory.Find(); dir != "" {
		return filepath.Join(dir, e.ID)
	}
	return filepath.Join(e.Dir, privateDir)
}

// shifted returns a user of a container as one of this machine.
func (r *record) shifted(o owner) owner { return owner{o.UID + r.IDs, o.GID + r.IDs} }

// writePrivate creates the files of an instance that it reads itself. It is called while it does
// not run.
func (d *Driver) writePrivate(r *record, i driver.Instance, variables []variable) error {
	if err := removeAll(r.Private); err != nil {
		return err
	}
	own := filepath.Join(r.Private, privateNative, ownDir)
	for _, dir := range []string{own, filepath.Join(r.Private, privateFiles)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("cannot create the directory of its files: %w", err)
		}
	}
	user, root := r.shifted(r.User), r.shifted(owner{})
	err := give(filepath.Join(r.Private, privateNative), root, 0o755)
	if err = errors.Join(err, give(own, user, 0o700)); err != nil {
		return fmt.Errorf("cannot give its files to its user: %w", err)
	}
	for n, f := range i.Workload.Files {
		if clean := path.Clean(f.Name); !path.IsAbs(f.Name) || clean == "/" {
			return fmt.Errorf("cannot create its file %q: the path must be absolute, such as /run/secrets/db", f.Name)
		}
		if err := replaceFile(filepath.Join(r.Private, privateFiles, strconv.Itoa(n)), []byte(f.Value), 0o400, user); err != nil {
			return fmt.Errorf("cannot create its file %q: %w", f.Name, errors.Unwrap(err))
		}
	}
	if err := replaceFile(filepath.Join(own, environmentFile), shellVariables(variables), 0o400, user); err != nil {
		return fmt.Errorf("cannot write its environment: %w", err)
	}
	if text := driver.ResolvConf(d.options.Networks.Resolver(i, r.Links)); text != "" {
		if err := replaceFile(filepath.Join(r.Private, resolvFile), []byte(text), 0o644, root); err != nil {
			return fmt.Errorf("cannot write its name servers: %w", err)
		}
	}
	return writeValues(r, i.Mdata.Values)
}

func give(path string, to owner, mode os.FileMode) error {
	return errors.Join(os.Lchown(path, to.UID, to.GID), os.Chmod(path, mode))
}

// variable is a variable of an instance's environment.
type variable struct{ name, value string }

// variables returns the environment of an instance, with variables that say what it is and where
// its values are.
func variables(i driver.Instance, w *mariposa.Workload) (all []variable) {
	set := func(name, value string) {
		for n := range all {
			if all[n].name == name {
				all[n].value = value
				return
			}
		}
		all = append(all, variable{name, value})
	}
	set("PATH", defaultPath)
	set("MARIPOSA_NAME", i.Name)
	set("MARIPOSA_SERVICE", i.Service)
	set("MARIPOSA_PROJECT", i.Project)
	for n, p := range w.Ports {
		if n == 0 {
			set("PORT", strconv.Itoa(p.Target))
		}
		set("PORT_"+strconv.Itoa(p.Target), strconv.Itoa(p.Target))
	}
	for _, v := range w.Environment {
		set(v.Name, v.Value)
	}
	set("MARIPOSA_INSTANCE", i.ID)
	set("MARIPOSA_MDATA_FILE", path.Join(nativeDir, ownDir, mdataFile))
	return all
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// isOneLine reports whether LXC can pass a variable on. The others are in the environment file
// only.
func (v variable) isOneLine() bool { return !strings.ContainsAny(v.value, "\n\r") }

// shellVariables writes variables as a shell reads them.
func shellVariables(all []variable) []byte {
	var b bytes.Buffer
	for _, v := range all {
		if isShellName(v.name) {
			b.WriteString("export " + v.name + "='" + strings.ReplaceAll(v.value, "'", `'\''`) + "'\n")
		}
	}
	return b.Bytes()
}

func isShellName(name string) bool {
	for n, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (n == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

// writeValues replaces the values of an instance atomically. Whoever watches the file is not
// woken without a change.
func writeValues(r *record, values []mariposa.Variable) error {
	object := make(map[string]string, len(values))
	for _, v := range values {
		object[v.Name] = v.Value
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // people read it too
	err := encoder.Encode(object)
	path := r.mdataPath()
	if old, readErr := os.ReadFile(path); readErr == nil && bytes.Equal(old, b.Bytes()) {
		return nil
	}
	if err == nil {
		err = replaceFile(path, b.Bytes(), 0o400, r.shifted(r.User))
	}
	if err != nil {
		return fmt.Errorf("cannot write the live values of an instance: %w", err)
	}
	return nil
}

func (r *record) mdataPath() string {
	return filepath.Join(r.Private, privateNative, ownDir, mdataFile)
}

// kept returns an instance with its record, for what may happen during another operation.
func (d *Driver) kept(ctx context.Context, id string) (e *entry, r record, leave func(), err error) {
	_, leave, err = d.gate.Enter(ctx)
	if err != nil {
		return nil, r, nil, err
	}
	if e, err = d.roster.Find(ctx, id); err != nil {
		leave()
		return nil, r, nil, err
	}
	d.roster.Lock()
	defer d.roster.Unlock()
	return e, e.known, leave, nil
}

// PublishValues replaces the values that an instance can read.
func (d *Driver) PublishValues(ctx context.Context, id string, values []mariposa.Variable) error {
	e, r, leave, err := d.kept(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	e.values.Lock()
	defer e.values.Unlock()
	if err := writeValues(&r, values); err != nil {
		if _, statErr := os.Stat(filepath.Dir(r.mdataPath())); statefile.IsGone(statErr) {
			return driver.ErrNotFound
		}
		return err
	}
	return nil
}

// PublishedValues returns the values that an instance can read.
func (d *Driver) PublishedValues(ctx context.Context, id string) ([]mariposa.Variable, error) {
	e, r, leave, err := d.kept(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	e.values.Lock()
	defer e.values.Unlock()
	var values map[string]string
	if err := statefile.Read(r.mdataPath(), &values); err != nil && !statefile.IsGone(err) {
		return nil, fmt.Errorf("cannot read the live values of an instance: %w", err)
	}
	list := make([]mariposa.Variable, 0, len(values))
	for name, value := range values {
		list = append(list, mariposa.Variable{Name: name, Value: value})
	}
	slices.SortFunc(list, func(a, b mariposa.Variable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}
