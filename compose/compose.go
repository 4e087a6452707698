// Package compose translates Compose files into manifests. It owns which key of a Compose
// file becomes which key of a manifest, and what a user is told about the others: nothing
// is dropped without a note. It knows neither the command line nor the server. Files are
// read through a function of the caller, except those that a Compose file includes or
// extends: the reader, compose-go, opens them itself.
package compose

import (
	"context"
	"path/filepath"
	"slices"

	"mariposa"
	"mariposa/manifest"
)

// MaxBytes bounds the size of a Compose file.
const MaxBytes = 1 << 20

// maxInlined bounds the size of a file that becomes part of the manifest.
const maxInlined = 64 << 10

// Input is a Compose file and what it can refer to.
type Input struct {
	Project     string            // name of the project to be; empty: that of the directory
	File        string            // name of the file, for messages
	Dir         string            // absolute path of the directory that its paths are relative to
	Text        []byte            // content of the file
	DotEnv      []byte            // content of .env in that directory; nil: none
	Environment map[string]string // variables, which override those of DotEnv
	// Read returns the content of a file of at most limit bytes. Its error is a phrase for
	// the user, such as "is a directory". Nil: there are no files.
	Read func(path string, limit int64) ([]byte, error)
}

// Note says what became of a key of the Compose file that a manifest does not have, or
// not in this form.
type Note struct {
	Line    int    `json:"line,omitempty"` // in the Compose file; 0: unknown
	Path    string `json:"path"`
	Message string `json:"message"`
	Lost    bool   `json:"lost"` // the key, or a part of it, is not carried over
}

// Translate returns the manifest of a Compose file, and notes in the order of the file. The
// manifest is always valid. An error of the Compose file is a *mariposa.Error that lists
// faults with their lines.
func Translate(ctx context.Context, in Input) ([]byte, []Note, error) {
	if len(in.Text) > MaxBytes {
		return nil, nil, mariposa.Errorf(mariposa.TooLarge, "the Compose file has %s; the limit is %s", mariposa.SizeUp(int64(len(in.Text))), mariposa.SizeUp(MaxBytes))
	}
	if in.Project == "" {
		in.Project = label(filepath.Base(in.Dir))
	}
	src, err := readSource(in.Text)
	if err != nil {
		return nil, nil, err
	}
	m, err := load(ctx, in, src)
	if err != nil {
		return nil, nil, err
	}
	t := &translation{Input: in, model: m, src: src, users: map[string][]string{}}
	if err := t.run(); err != nil {
		return nil, nil, err
	}
	doc := t.out.write()
	if _, err := manifest.Parse(doc); err != nil {
		if mariposa.CodeOf(err) == mariposa.TooLarge {
			return nil, nil, mariposa.Errorf(mariposa.TooLarge, "the translated manifest is too large: %w", err)
		}
		return nil, nil, mariposa.Errorf(mariposa.Internal, "the translation is not a valid manifest, which is a bug in Mariposa: %w", err)
	}
	return doc, t.sortedNotes(), nil
}

// translation is the state of one Translate.
type translation struct {
	Input
	*model
	src   *source
	out   document
	notes []Note

	serviceNames map[string]string   // in the manifest, by name in the Compose file
	volumeNames  map[string]string   // likewise
	networkNames map[string]string   // likewise
	metaNames    map[string]string   // likewise, of secrets
	users        map[string][]string // of each named volume: services
	oneShot      map[string]bool     // services that others wait for to complete
}

// run translates the whole project.
func (t *translation) run() error {
	t.nameThings()
	t.noteMissingVariables()
	t.noteKeys()
	t.noteProfiles()
	t.findOneShots()
	for _, name := range t.inOrder(t.project.ServiceNames()) {
		svc := t.project.Services[name]
		if svc.Provider != nil {
			continue // noteKeys says so
		}
		if err := t.service(name, &svc); err != nil {
			return err
		}
	}
	if len(t.out.Services) == 0 {
		return t.noServices()
	}
	t.declareVolumes()
	t.declareNetworks()
	if len(t.out.Services) > 1 && t.out.Networks != nil {
		t.inform([]string{"services"}, "services reach each other by name only on the same node: a network does not span nodes")
	}
	return nil
}

// noServices explains why nothing is left to translate.
func (t *translation) noServices() error {
	message := "has no services"
	if len(t.project.DisabledServices) > 0 {
		message = "has no active services: choose profiles with the environment variable COMPOSE_PROFILES"
	}
	at := t.src.find("services")
	return fault(mariposa.Fault{Field: "services", Code: mariposa.FaultMissing, Message: message, Line: at.line})
}

// fault returns the error for faults of the Compose file.
func fault(faults ...mariposa.Fault) error {
	return &mariposa.Error{Code: mariposa.InvalidArgument, Message: "the Compose file has an error: " + faults[0].String(), Faults: faults}
}

// lost notes that something is not carried over.
func (t *translation) lost(steps []string, format string, args ...any) {
	t.note(true, steps, format, args...)
}

// inform notes something about what is carried over.
func (t *translation) inform(steps []string, format string, args ...any) {
	t.note(false, steps, format, args...)
}

// sortedNotes returns the notes in the order of the file, each once.
func (t *translation) sortedNotes() []Note {
	slices.SortStableFunc(t.notes, func(a, b Note) int { return a.Line - b.Line })
	return slices.Compact(t.notes)
}
