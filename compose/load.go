package compose

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/sirupsen/logrus"

	"mariposa"
)

// model is a Compose file as compose-go reads it.
type model struct {
	written map[string]any // variables, includes and extends are resolved; nothing is added
	project *types.Project // complete
	env     types.Mapping
	missing map[string]bool // variables without a value and without a default
}

// loading is held while compose-go reads a file: compose-go records the files that it has warned
// about in a global variable.
var loading sync.Mutex

// load reads a Compose file. It fetches nothing from the network.
func load(ctx context.Context, in Input, src *source) (m *model, err error) {
	defer func() {
		if p := recover(); p != nil { // bugs of the library can cause a panic
			m, err = nil, mariposa.Errorf(mariposa.InvalidArgument, "the Compose file cannot be read: %v", p)
		}
	}()
	logrus.SetOutput(io.Discard) // compose-go is its only user, and what it warns of becomes notes
	env, err := environment(in)
	if err != nil {
		return nil, err
	}
	m = &model{env: env, missing: map[string]bool{}}
	details := types.ConfigDetails{
		WorkingDir: in.Dir, Environment: env,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(in.Dir, filepath.Base(in.File)), Content: in.Text}},
	}
	options := func(o *loader.Options) {
		o.SkipNormalization, o.SkipResolveEnvironment = true, true
		o.Profiles = profiles(env)
		o.ResourceLoaders = []loader.ResourceLoader{guard{in, src}}
		o.Interpolate.Substitute = m.substitute
		o.SetProjectName(label(in.Project), true)
	}
	loading.Lock()
	defer loading.Unlock()
	if m.written, err = loader.LoadModelWithContext(ctx, details, options); err == nil {
		m.project, err = complete(ctx, m.written, details, options)
	}
	if err != nil {
		return nil, explain(err, in, src)
	}
	return m, nil
}

// complete returns a file whose variables, includes and extends are resolved as a project.
func complete(ctx context.Context, written map[string]any, details types.ConfigDetails, options func(*loader.Options)) (*types.Project, error) {
	dict := clone(written).(map[string]any)
	labels := map[string]types.StringList{} // files, which the library would read by itself
	eachMapping(dict["services"], func(name string, service map[string]any) {
		switch files := service["label_file"].(type) {
		case string:
			labels[name] = types.StringList{files}
		case []any:
			for _, file := range files {
				labels[name] = append(labels[name], fmt.Sprint(file))
			}
		}
		delete(service, "label_file")
	})
	for _, kind := range []string{"configs", "secrets"} {
		eachMapping(dict[kind], func(_ string, file map[string]any) {
			if _, set := file["environment"]; set {
				delete(file, "content") // it is its value
			}
		})
	}
	details.ConfigFiles = []types.ConfigFile{{Filename: details.ConfigFiles[0].Filename, Config: dict}}
	p, err := loader.LoadWithContext(ctx, details, options, func(o *loader.Options) {
		o.SkipNormalization, o.SkipInterpolation, o.SkipInclude, o.SkipExtends = false, true, true, true
	})
	if err != nil {
		return nil, err
	}
	for name, files := range labels {
		if service, active := p.Services[name]; active {
			service.LabelFiles = files
			p.Services[name] = service
		}
	}
	return p, nil
}

// eachMapping calls a function for each mapping in a mapping.
func eachMapping(all any, f func(name string, one map[string]any)) {
	named, _ := all.(map[string]any)
	for name, one := range named {
		if one, ok := one.(map[string]any); ok {
			f(name, one)
		}
	}
}

// environment returns the variables for a Compose file: those of .env, overridden by those
// of the caller.
func environment(in Input) (types.Mapping, error) {
	lookup := func(name string) (string, bool) { v, ok := in.Environment[name]; return v, ok }
	all, err := dotenv.ParseWithLookup(bytes.NewReader(in.DotEnv), lookup)
	if err != nil {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, ".env cannot be read: %w", err)
	}
	maps.Copy(all, in.Environment)
	return all, nil
}

// profiles returns the names of the active profiles.
func profiles(env types.Mapping) []string {
	return slices.DeleteFunc(strings.Split(env["COMPOSE_PROFILES"], ","), func(p string) bool { return p == "" })
}

// substitute replaces the variables of a text, and records those that have no value.
func (m *model) substitute(text string, lookup template.Mapping) (string, error) {
	for _, name := range plainVariables(text) {
		if _, ok := lookup(name); !ok {
			m.missing[name] = true
		}
	}
	return template.SubstituteWithOptions(text, lookup, template.WithoutLogging)
}

// plainVariables lists the variables of a text that have no default: $NAME and ${NAME}.
func plainVariables(text string) []string {
	if !strings.Contains(text, "$") {
		return nil
	}
	var names []string
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		if name := m[1] + m[2]; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// variable matches $$, which is a dollar sign, and variables without a default.
var variable = regexp.MustCompile(`\$\$|\$([A-Za-z_][A-Za-z0-9_]*)|\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// noteMissingVariables notes variables that were replaced by nothing.
func (t *translation) noteMissingVariables() {
	const message = "the variable %s has no value and is replaced by nothing; set it in your environment or in .env"
	left := maps.Clone(t.missing)
	t.src.scalars(func(line int, path []string, text string) {
		for _, name := range plainVariables(text) {
			if t.missing[name] {
				delete(left, name)
				t.notes = append(t.notes, Note{Line: line, Path: join(path), Message: fmt.Sprintf(message, name), Lost: true})
			}
		}
	})
	at := t.src.find("include")
	if at.line == 0 {
		at = t.src.find("services")
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		t.notes = append(t.notes, Note{Line: at.line, Path: at.path, Message: "in an included or extended file, " + fmt.Sprintf(message, name), Lost: true})
	}
}

// guard is asked for each included or extended file before compose-go opens it. It refuses
// what is not a local file of a reasonable size.
type guard struct {
	in  Input
	src *source
}

var remote = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*://|git@|github\.com/)|\.git(#.*)?$`)

func (g guard) Accept(path string) bool { return g.refusal(path) != "" }

func (g guard) Load(_ context.Context, path string) (string, error) {
	f := mariposa.Fault{Code: mariposa.FaultInvalid, Message: path + " " + g.refusal(path)}
	g.src.scalars(func(line int, at []string, text string) {
		if text == path {
			f.Line, f.Field = line, join(at)
		}
	})
	return "", fault(f)
}

func (guard) Dir(path string) string { return path }

// refusal returns why a file is not read. The path may be relative to another included
// file; then the file is not found here, and compose-go reads it.
func (g guard) refusal(path string) string {
	switch {
	case remote.MatchString(path):
		return "is not a local file, and Mariposa fetches nothing; download it and use its path"
	case g.in.Read == nil:
		return "is not read; there are no other files"
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(g.in.Dir, path)
	}
	if _, err := g.in.Read(path, MaxBytes); err != nil && !isNotFound(err) {
		return err.Error()
	}
	return ""
}

// clone copies a tree of mappings and lists.
func clone(value any) any {
	switch v := value.(type) {
	case map[string]any:
		all := make(map[string]any, len(v))
		for key, below := range v {
			all[key] = clone(below)
		}
		return all
	case []any:
		all := make([]any, len(v))
		for i, below := range v {
			all[i] = clone(below)
		}
		return all
	}
	return value
}
