// Command bundle translates the page's TypeScript and style sheet to the files that the binary
// contains. Run it with `go generate ./web` after a change in web/src. It needs no Node: esbuild
// is a Go package.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	files, err := bundle("src")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join("dist", name), body, 0o644); err != nil { //nolint:gosec // sources are public
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// bundle returns the files of the page by name.
func bundle(src string) (map[string][]byte, error) {
	files := map[string][]byte{}
	built := api.Build(api.BuildOptions{
		EntryPoints: []string{filepath.Join(src, "app.ts"), filepath.Join(src, "app.css")}, Outdir: "out", Bundle: true, Format: api.FormatIIFE,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, Target: api.ES2022, Charset: api.CharsetUTF8, LegalComments: api.LegalCommentsNone,
		LogLevel: api.LogLevelSilent,
	})
	var faults []error
	for _, e := range built.Errors {
		at := ""
		if e.Location != nil {
			at = fmt.Sprintf("%s:%d: ", e.Location.File, e.Location.Line)
		}
		faults = append(faults, errors.New(at+e.Text))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	for _, f := range built.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	for _, name := range []string{"index.html", "icon.svg"} {
		body, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return nil, err
		}
		files[name] = body
	}
	return files, nil
}
