package compose

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// storage sets volumes and files.
func (d *draft) storage() {
	for _, v := range d.from.Volumes {
		d.mount(v, []string{"volumes", d.volumeStep(v)})
	}
	if len(d.to.Volumes) > 0 && !d.accept("volumes", d.to.Volumes, "volumes") { // too many
		d.to.Volumes = nil
	}
	for _, c := range d.from.Configs {
		d.config(c)
	}
	for _, s := range d.from.Secrets {
		d.secret(s)
	}
}

// volumeStep returns how a volume is found in the list of the file.
func (d *draft) volumeStep(v types.ServiceVolumeConfig) string {
	for i, item := range d.src.items(d.at("volumes")...) {
		if item = target(item); item == nil {
			continue
		}
		written := item.Value
		if _, at := d.src.child(item, "target", maxFollowed); at != nil {
			written = at.Value
		}
		written = d.substituted(written)
		for _, part := range append(strings.Split(written, ":"), written) {
			if part != "" && path.Clean(part) == v.Target {
				return fmt.Sprintf("[%d]", i)
			}
		}
	}
	return ""
}

// mount translates an entry of volumes.
func (d *draft) mount(v types.ServiceVolumeConfig, at []string) {
	if at[1] == "" {
		at = at[:1]
	}
	switch v.Type {
	case types.VolumeTypeVolume:
		d.volume(v, at)
	case types.VolumeTypeBind:
		d.bind(v, at)
	case types.VolumeTypeTmpfs:
		d.lost(d.at(at...), "is not carried over: the path is on the container's file system, which is removed with the container")
	default:
		d.lost(d.at(at...), "is not carried over: a manifest has no volumes of type %s", v.Type)
	}
}

// volume adds a volume of the engine.
func (d *draft) volume(v types.ServiceVolumeConfig, at []string) {
	where := path.Clean(v.Target)
	for _, other := range d.mounted {
		if inside(where, other) || inside(other, where) {
			d.lost(d.at(at...), "is not carried over: %s and %s cannot be inside each other; choose another path", where, other)
			return
		}
	}
	name := d.volumeNames[v.Source]
	if v.Source == "" {
		taken := map[string]bool{}
		for _, used := range d.volumeNames {
			taken[used] = true
		}
		name = unique(label(d.serviceNames[d.name]+where), taken)
	}
	mount := name + ":" + where
	if v.ReadOnly {
		mount += ":ro"
	}
	if !d.accept("volumes", []string{mount}, at...) {
		return
	}
	if v.Source == "" {
		d.volumeNames["\x00"+name] = name // no volume of the file has this key
		d.inform(d.at(at...), "the anonymous volume is called %s in the manifest; its data is kept when the instance is replaced", name)
	}
	if v.Volume != nil && v.Volume.Subpath != "" {
		d.lost(d.at(at...), "subpath is not carried over: the whole volume is mounted")
	}
	if v.Volume != nil && v.Volume.NoCopy {
		d.lost(d.at(at...), "nocopy is not carried over: a new volume starts with what the image has at the path")
	}
	if v.Volume != nil && len(v.Volume.Labels) > 0 {
		d.lost(d.at(at...), "labels are not carried over: volumes have no labels")
	}
	d.mounted = append(d.mounted, where)
	d.to.Volumes = append(d.to.Volumes, mount)
	d.users[v.Source] = append(d.users[v.Source], d.name)
}

// inside reports whether a path is another one, or below it.
func inside(p, other string) bool {
	return p == other || strings.HasPrefix(p, strings.TrimSuffix(other, "/")+"/")
}

// bind translates a path of this machine: a small text becomes a file of the manifest.
func (d *draft) bind(v types.ServiceVolumeConfig, at []string) {
	shown := d.shown(v.Source)
	if path.Base(v.Source) == "docker.sock" {
		d.lost(d.at(at...), "is not carried over: the engine's socket cannot be given to a container")
		return
	}
	text, err := d.readText(v.Source)
	if err != nil {
		d.lost(d.at(at...), "is not carried over: nodes do not have the files of this machine, and %s %s; put the files into the image, or use a volume", shown, phrase(err))
		return
	}
	if d.file(path.Clean(v.Target), text, shown, at) {
		d.inform(d.at(at...), "the content of %s became part of the manifest, as a file that the container can only read; later changes of %s have no effect", shown, shown)
	}
}

// readText reads a file that can become part of a manifest.
func (t *translation) readText(name string) (string, error) {
	text, err := t.read(name, maxInlined)
	if err != nil {
		return "", err
	}
	if why := unwritable(string(text)); why != "" {
		return "", fmt.Errorf("is not a text: it %s", why)
	}
	return string(text), nil
}

// file adds a file with a text. A private key does not become part of the manifest.
func (d *draft) file(where, text, origin string, at []string) bool {
	if strings.Contains(text, "PRIVATE KEY-----") {
		taken := map[string]bool{bracesKey: true}
		for _, name := range d.metaNames {
			taken[name] = true
		}
		key := unique(metaName(strings.Trim(path.Base(where), "./")), taken)
		d.metaNames["\x00"+key] = key
		d.secretFile(where, key, "meta set "+key+" --from-file "+origin, "it contains a private key", at)
		return false
	}
	return d.place(where, d.literal(text), at)
}

// place adds a file, if its path is possible.
func (d *draft) place(where, text string, at []string) bool {
	if d.to.Files != nil {
		for _, f := range *d.to.Files {
			if inside(where, f.key) || inside(f.key, where) {
				d.lost(d.at(at...), "is not carried over: there is already a file %s", f.key)
				return false
			}
		}
	}
	if !d.accept("files", &ordered{{where, text}}, at...) {
		return false
	}
	push(&d.to.Files, where, text)
	return true
}

// config adds a config as a file.
func (d *draft) config(c types.ServiceConfigObjConfig) {
	at := []string{"configs", c.Source}
	where := absolute(c.Target, c.Source, "/")
	from := d.project.Configs[c.Source]
	var text, origin string
	var err error
	switch {
	case bool(from.External):
		d.lost(d.at(at...), "is not carried over: the config is external; write its content under files: of the manifest")
		return
	case from.File != "":
		origin = d.shown(from.File)
		text, err = d.readText(from.File)
	case from.Environment != "":
		origin = "$" + from.Environment
		if _, known := d.env[from.Environment]; !known {
			d.lost(d.at(at...), "is not carried over: the variable %s has no value", from.Environment)
			return
		}
		text = from.Content
	default:
		text = from.Content
	}
	if err != nil {
		d.lost(d.at(at...), "is not carried over: %s %s", origin, phrase(err))
		return
	}
	if d.file(where, text, origin, at) && origin != "" {
		d.inform(d.at(at...), "the content of %s became part of the manifest; later changes of it have no effect", origin)
	}
}

// secret adds a secret as a file whose content is metadata: it never becomes part of the
// manifest.
func (d *draft) secret(s types.ServiceSecretConfig) {
	at := []string{"secrets", s.Source}
	key := d.metaNames[s.Source]
	from := d.project.Secrets[s.Source]
	command := "meta set " + key + " --from-file FILE"
	switch {
	case bool(from.External):
	case from.File != "":
		command = "meta set " + key + " --from-file " + d.shown(from.File)
	case from.Environment != "":
		command = "meta set " + key + " - # the value of $" + from.Environment
	}
	d.secretFile(absolute(s.Target, s.Source, "/run/secrets/"), key, command, "secrets are never part of a manifest", at)
}

// secretFile adds a file with the value of a secret metadata key, and says how to set it.
func (d *draft) secretFile(where, key, command, why string, at []string) {
	if !d.out.Metadata.has(key) {
		push(&d.out.Metadata, key, metadata{Required: true, Secret: true})
	}
	if !d.place(where, "{{ .meta."+key+" }}", at) {
		return
	}
	d.inform(d.at(at...), "%s: its content is the metadata key %s, and nothing starts until you set that: `mariposa -j %s %s`", why, key, label(d.Project), command)
}

// absolute returns the path of a file in the container.
func absolute(target, source, dir string) string {
	if target == "" {
		target = source
	}
	if !path.IsAbs(target) {
		target = dir + target
	}
	return path.Clean(target)
}

// declareVolumes declares the volumes that services use.
func (t *translation) declareVolumes() {
	for _, name := range t.sortByLine(slices.Collect(maps.Keys(t.volumeNames)), "volumes") {
		source, anonymous := strings.CutPrefix(name, "\x00")
		who := t.sharers(name)
		if anonymous || source == "" || who == "" {
			push(&t.out.Volumes, t.volumeNames[name], ordered{})
		} else {
			push(&t.out.Volumes, t.volumeNames[name], ordered{{"shared", true}})
		}
		if anonymous || source == "" {
			continue
		}
		v := t.project.Volumes[name]
		at := []string{"volumes", name}
		if v.External {
			t.lost(at, "is external: the manifest has a new and empty volume; copy the data into it")
		} else if _, named := t.writtenKey("volumes", name, "name"); named {
			t.lost(append(at, "name"), "is not carried over: the engine's volumes are named by Mariposa; the new volume is empty")
		}
		if who != "" {
			t.inform(at, "%s share it, so they all run on one node", who)
		}
	}
}

// sharers names the containers that share a volume; empty if only one uses it.
func (t *translation) sharers(name string) string {
	users := slices.Compact(slices.Sorted(slices.Values(t.users[name])))
	if len(users) > 1 {
		return strings.Join(users, " and ")
	}
	for _, user := range users {
		svc := t.project.Services[user]
		if svc.GetScale() > 1 {
			return "the instances of " + user
		}
	}
	return ""
}

// writtenKey returns the value of a key as the file has it.
func (t *translation) writtenKey(steps ...string) (any, bool) {
	var n any = t.written
	for _, step := range steps {
		m, _ := n.(map[string]any)
		below, ok := m[step]
		if !ok {
			return nil, false
		}
		n = below
	}
	return n, true
}

// declareNetworks declares the networks that services use.
func (t *translation) declareNetworks() {
	for _, name := range t.sortByLine(slices.Collect(maps.Keys(t.networkNames)), "networks") {
		n := t.project.Networks[name]
		at := []string{"networks", name}
		if n.External {
			push(&t.out.Networks, t.networkNames[name], ordered{{"shared", true}})
			t.inform(at, "is external: it becomes a network that all projects of the organization share which declare it in the same way; containers that Mariposa does not run cannot join it")
			continue
		}
		push(&t.out.Networks, t.networkNames[name], ordered{})
		if _, named := t.writtenKey("networks", name, "name"); named {
			t.lost(append(at, "name"), "is not carried over: the engine's networks are named by Mariposa")
		}
	}
}

// useDefaultNetwork adds the network of services that name none.
func (t *translation) useDefaultNetwork() {
	if t.networkNames["default"] != "" {
		return
	}
	taken := map[string]bool{}
	for _, name := range t.networkNames {
		taken[name] = true
	}
	t.networkNames["default"] = unique("default", taken)
}

// relative returns a path relative to the directory of the Compose file; empty if it is
// elsewhere.
func (t *translation) relative(name string) string {
	rel, err := filepath.Rel(t.Dir, name)
	if err != nil || len(rel) >= len(name) {
		return ""
	}
	if strings.HasPrefix(rel, "..") {
		return rel
	}
	return "./" + rel
}
