package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/compose"
)

// manifestSource says where a command reads its manifest: from a file, or from a Compose
// file that is translated.
type manifestSource struct {
	file    string // -m
	compose string // --compose
	strict  bool   // --strict
	dryRun  bool   // --dry-run
}

// add adds the flags of a source, -m excepted.
func (s *manifestSource) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.compose, "compose", "", "Compose file to translate into a manifest; - reads standard input")
	f.BoolVar(&s.strict, "strict", false, "with --compose: refuse a file if a part of it is not carried over")
	if err := cmd.MarkFlagFilename("compose", "yaml", "yml"); err != nil {
		panic(err) // the flag is defined above
	}
}

// addDryRun adds the flag that only prints the translation.
func (s *manifestSource) addDryRun(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "with --compose: print the manifest and change nothing")
}

// check rejects flags that contradict each other.
func (s *manifestSource) check() error {
	switch {
	case s.compose != "" && s.file != "":
		return Usage(errors.New("-m and --compose cannot be combined: give a manifest or a Compose file"))
	case s.compose == "" && s.strict:
		return Usage(errors.New("--strict applies to a Compose file: name it with --compose"))
	case s.compose == "" && s.dryRun:
		return Usage(withHint(errors.New("--dry-run prints the translation of a Compose file: name it with --compose"), "to see what a manifest would do, use `mariposa project plan`"))
	}
	return nil
}

// flags returns the flags for commands suggested to the user.
func (s *manifestSource) flags() string {
	if s.compose != "" {
		return " --compose " + s.compose
	}
	return prefixed(" -m ", s.file)
}

// readSource reads a manifest, or translates a Compose file for a project.
func (a *app) readSource(ctx context.Context, s *manifestSource, project string) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.compose == "" {
		return a.readManifest(s.file)
	}
	doc, notes, err := a.translate(ctx, s, project)
	if err != nil {
		return nil, err
	}
	if !s.dryRun {
		a.printNotes(notes)
	}
	if a.file != stdinName {
		a.file = "the translation of " + a.file
	}
	a.documentKind = "manifest"
	return doc, nil
}

// translate translates a Compose file.
func (a *app) translate(ctx context.Context, s *manifestSource, project string) ([]byte, []compose.Note, error) {
	text, err := a.readDocument(s.compose, "Compose file")
	if err != nil {
		return nil, nil, err
	}
	dir := "."
	if s.compose != "-" {
		dir = filepath.Dir(s.compose)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, nil, fmt.Errorf("cannot find the directory of %s: %w", a.file, err)
	}
	env, err := readBounded(filepath.Join(dir, ".env"), maxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s %w", filepath.Join(dir, ".env"), err)
	}
	doc, notes, err := compose.Translate(ctx, compose.Input{
		Project: project, File: s.compose, Dir: dir, Text: text, DotEnv: env, Environment: a.environment(), Read: readBounded,
	})
	if err != nil {
		return nil, nil, err
	}
	if lost := slices.DeleteFunc(slices.Clone(notes), func(n compose.Note) bool { return !n.Lost }); s.strict && len(lost) > 0 {
		a.printNotes(lost)
		return nil, nil, withHint(fmt.Errorf("%s of %s cannot be carried over; nothing was changed", plural(len(lost), "part", "parts"), a.file), "change the lines above, or omit --strict")
	}
	return doc, notes, nil
}

// printNotes prints what became of the lines of a Compose file, in a form that editors can
// jump to.
func (a *app) printNotes(notes []compose.Note) {
	for _, n := range notes {
		a.note("%s", a.fault(mariposa.Fault{Field: n.Path, Message: n.Message, Line: n.Line}))
	}
}

// printTranslation prints the manifest of a Compose file, and the notes.
func (a *app) printTranslation(ctx context.Context, s *manifestSource, project string) error {
	if err := s.check(); err != nil {
		return err
	}
	doc, notes, err := a.translate(ctx, s, project)
	if err != nil {
		return err
	}
	if a.global.json {
		if notes == nil {
			notes = []compose.Note{}
		}
		return a.printJSON(struct {
			Manifest string         `json:"manifest"`
			Notes    []compose.Note `json:"notes"`
		}{string(doc), notes})
	}
	a.printNotes(notes)
	_, err = a.env.Stdout.Write(doc)
	return err
}

// environment returns the variables of the command.
func (a *app) environment() map[string]string {
	all := map[string]string{}
	for _, pair := range a.env.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		all[name] = value
	}
	return all
}

// readBounded reads a regular file of at most limit bytes. Its errors follow the name of
// the file.
func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path) // opening a pipe would wait
	switch {
	case err != nil && errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err != nil:
		return nil, withoutPath(err)
	case info.IsDir():
		return nil, errors.New("is a directory")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > limit:
		return nil, fmt.Errorf("has %s; the limit is %s", mariposa.SizeUp(info.Size()), mariposa.SizeUp(limit))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	all, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	if int64(len(all)) > limit {
		return nil, fmt.Errorf("has more than %s", mariposa.SizeUp(limit))
	}
	return all, nil
}

// withoutPath returns an error of a file that follows the file's name.
func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("cannot be read: %w", err)
}
