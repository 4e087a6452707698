package compose

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/types"
)

// environment sets the variables: those of the files, overridden by those of the service.
func (d *draft) environment() {
	own := d.from.Environment
	values, from := map[string]string{}, map[string][]string{} // by name: value, and steps to where it is written
	for _, file := range d.from.EnvFiles {
		at := []string{"env_file", d.fileStep("env_file", file.Path)}
		for name, value := range d.readVariables(file, at) {
			values[name], from[name] = value, at
		}
	}
	for name, value := range own {
		at := []string{"environment", name}
		if value == nil {
			d.lost(d.at(at...), "is not carried over: it has no value here, and your environment has none")
			continue
		}
		values[name], from[name] = *value, at
		if d.isInherited(name) {
			d.inform(d.at(at...), "its value comes from your environment and became part of the manifest")
		}
	}
	all := d.sortByLine(slices.Collect(maps.Keys(values)), d.at("environment")...)
	for _, name := range all {
		if looksSecret(name) && values[name] != "" {
			d.inform(d.at(from[name]...), "%s looks like a secret, and everyone who can read the manifest can read it; declare it under metadata (secret: true) and use {{ .meta.%s }}", name, metaName(name))
		}
	}
	d.to.Environment = d.acceptPairs("environment", all, values, from)
}

// fileStep returns how a file is found in a list of the Compose file.
func (d *draft) fileStep(key, name string) string {
	for i, item := range d.src.items(d.at(key)...) {
		if item = target(item); item == nil {
			continue
		}
		if _, path := d.src.child(item, "path", maxFollowed); path != nil {
			item = path
		}
		written := d.substituted(item.Value)
		if !filepath.IsAbs(written) {
			written = filepath.Join(d.Dir, written)
		}
		if filepath.Clean(written) == filepath.Clean(name) {
			return fmt.Sprintf("[%d]", i)
		}
	}
	return d.shown(name)
}

// isInherited reports whether the file names a variable without giving it a value.
func (d *draft) isInherited(name string) bool {
	services, _ := d.written["services"].(map[string]any)
	svc, _ := services[d.name].(map[string]any)
	if env, ok := svc["environment"].(map[string]any); ok {
		value, set := env[name]
		return set && value == nil
	}
	at := d.src.find(d.at("environment", name)...)
	return at.node != nil && at.node.Value == name
}

// readVariables reads a file of variables.
func (d *draft) readVariables(file types.EnvFile, at []string) (vars map[string]string) {
	defer func() {
		if p := recover(); p != nil { // bugs of the library can cause a panic
			d.lost(d.at(at...), "is not carried over: it cannot be read")
			vars = nil
		}
	}()
	text, err := d.read(file.Path, MaxBytes)
	if isNotFound(err) && !file.Required {
		return nil
	}
	vars = map[string]string{}
	if err == nil {
		err = dotenv.ParseWithFormat(bytes.NewReader(text), file.Path, vars, d.resolve, file.Format)
	}
	if err != nil {
		d.lost(d.at(at...), "is not carried over: %s %s", d.shown(file.Path), phrase(err))
		return nil
	}
	d.inform(d.at(at...), "%s became part of the manifest; later changes of %s have no effect", plural(len(vars), "variable", "variables"), d.shown(file.Path))
	return vars
}

// resolve returns the value of a variable that a file of variables refers to.
func (d *draft) resolve(name string) (string, bool) {
	if value, ok := d.env[name]; ok {
		return value, true
	}
	if value := d.from.Environment[name]; value != nil {
		return *value, true
	}
	return "", false
}

// labels sets the tags.
func (d *draft) labels() {
	values, from := map[string]string{}, map[string][]string{}
	for _, file := range d.from.LabelFiles {
		at := []string{"label_file", d.fileStep("label_file", file)}
		for name, value := range d.readVariables(types.EnvFile{Path: file, Required: true}, at) {
			values[name], from[name] = value, at
		}
	}
	for name, value := range d.from.Labels {
		values[name], from[name] = value, []string{"labels", name}
	}
	all := d.sortByLine(slices.Collect(maps.Keys(values)), d.at("labels")...)
	d.to.Tags = d.acceptPairs("tags", all, values, from)
}

// acceptPairs returns the pairs of names and values that a manifest can have.
func (d *draft) acceptPairs(key string, names []string, values map[string]string, from map[string][]string) (all *ordered) {
	for _, name := range names {
		push(&all, name, d.literal(values[name]))
	}
	if all == nil || d.refusal(key, all) == "" {
		return all
	}
	var good *ordered
	for _, e := range *all {
		if d.accept(key, &ordered{e}, from[e.key]...) {
			push(&good, e.key, e.value)
		}
	}
	return good
}

var (
	secretName = regexp.MustCompile(`(?i)(PASS(WORD|WD|PHRASE)?|SECRET|TOKEN|CREDENTIALS?|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY)(_?\d+)?$`)
	publicName = regexp.MustCompile(`(?i)(PUBLIC|BYPASS|COMPASS)`)
)

// looksSecret reports whether the name of a variable is one that people give to secrets.
func looksSecret(name string) bool {
	return secretName.MatchString(name) && !publicName.MatchString(name)
}

// read reads a file next to the Compose file.
func (t *translation) read(path string, limit int64) ([]byte, error) {
	if t.Read == nil {
		return nil, fs.ErrNotExist
	}
	return t.Read(path, limit)
}

// phrase writes an error of a file so that it follows the name of the file.
func phrase(err error) string {
	if isNotFound(err) {
		return "does not exist"
	}
	return err.Error()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func formatCount(prefix string, n uint64) string { return fmt.Sprint(prefix, n) }

// shown returns a path as people write it in the Compose file.
func (t *translation) shown(path string) string {
	return cmp.Or(t.relative(path), path)
}
