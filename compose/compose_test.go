package compose

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/manifest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// readFile reads a file as the command line does.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err != nil:
		return nil, errors.New("cannot be read")
	case info.IsDir():
		return nil, errors.New("is a directory")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > limit:
		return nil, fmt.Errorf("has more than %s", mariposa.SizeUp(limit))
	}
	return os.ReadFile(path)
}

// input is a Compose file in testdata. Lines that begin with "# env: " set variables.
func input(t testing.TB, text string) Input {
	t.Helper()
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	in := Input{Project: "shop", File: "compose.yaml", Dir: dir, Text: []byte(text), Environment: map[string]string{}, Read: readFile}
	for line := range strings.Lines(text) {
		if set, ok := strings.CutPrefix(strings.TrimSpace(line), "# env: "); ok {
			name, value, _ := strings.Cut(set, "=")
			in.Environment[name] = value
		}
		if set, ok := strings.CutPrefix(strings.TrimSpace(line), "# .env: "); ok {
			in.DotEnv = append(in.DotEnv, set+"\n"...)
		}
	}
	return in
}

// outcome writes what a translation returns.
func outcome(doc []byte, notes []Note, err error) string {
	var b strings.Builder
	b.Write(doc)
	if len(notes) > 0 {
		b.WriteString("---\n")
	}
	for _, n := range notes {
		lost := ""
		if n.Lost {
			lost = " (lost)"
		}
		fmt.Fprintf(&b, "%d%s: %s: %s\n", n.Line, lost, n.Path, n.Message)
	}
	if err != nil {
		fmt.Fprintf(&b, "error: %v\n", err)
		var e *mariposa.Error
		if errors.As(err, &e) {
			for _, f := range e.Faults {
				fmt.Fprintf(&b, "%d: %s: %s\n", f.Line, f.Field, f.Message)
			}
		}
	}
	return b.String()
}

func TestFilesBecomeManifestsAndNotes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			doc, notes, err := Translate(t.Context(), input(t, string(text)))
			got := outcome(doc, notes, err)
			if strings.Contains(got, "hunter2") && !strings.Contains(string(text), "hunter2") {
				t.Error("a secret is part of the manifest")
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, _ := os.ReadFile(golden)
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if err == nil {
				if _, err := manifest.Parse(doc); err != nil {
					t.Error(err)
				}
			}
			for _, n := range notes {
				if n.Line <= 0 || n.Line > strings.Count(string(text), "\n")+1 {
					t.Errorf("a note has no line: %+v", n)
				}
			}
		})
	}
}

// The example of the documentation is what a user gets.
func TestTheExampleOfTheDocumentationIsTrue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/compose.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "## Example\n")
	blocks := strings.Split(example, "```")
	file, manifest, notes := strings.TrimPrefix(blocks[1], "yaml\n"), strings.TrimPrefix(blocks[3], "yaml\n"), strings.TrimPrefix(blocks[5], "\n")
	in := input(t, file)
	in.File, in.Environment["TAG"] = "docker-compose.yml", "1.4"
	doc, all, err := Translate(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if string(doc) != manifest {
		t.Errorf("the manifest is\n%s\nnot\n%s", doc, manifest)
	}
	var got strings.Builder
	for _, n := range all {
		fmt.Fprintf(&got, "docker-compose.yml:%d: %s: %s\n", n.Line, n.Path, n.Message)
	}
	if got.String() != notes {
		t.Errorf("the notes are\n%s\nnot\n%s", got.String(), notes)
	}
}
