package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// maxFile is well above what the server accepts. It avoids reading a wrong file, such as
// a disk, completely.
const maxFile = 16 << 20

// readManifest reads a manifest from a file, or from standard input for "-".
func (a *app) readManifest(name string) ([]byte, error) {
	return a.readDocument(name, "manifest")
}

// readDocument reads the file given with -m, and records its name for error messages.
func (a *app) readDocument(name, holds string) ([]byte, error) {
	if name == "" && holds == "manifest" {
		if _, err := os.Stat(manifestName); err == nil {
			name = manifestName
		}
	}
	if name == "" {
		return nil, Usage(fmt.Errorf("no %s given: name its file with -m, or use -m - for standard input", holds))
	}
	all, shown, err := a.readFile(name, "the "+holds)
	if err != nil {
		return nil, err
	}
	a.file, a.documentKind = shown, holds
	if len(bytes.TrimSpace(all)) == 0 && holds != "metadata" { // no values: as if it had only comments
		return nil, fmt.Errorf("the %s is empty: there is nothing in %s", holds, shown)
	}
	return all, nil
}

// stdinName is the name of standard input in messages.
const stdinName = "standard input"

// readFile reads a file, or standard input for "-", and returns its name for
// messages.
func (a *app) readFile(name, holds string) (all []byte, shown string, err error) {
	in, shown := a.env.Stdin, stdinName
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, "", fmt.Errorf("cannot read %s: %w", holds, err)
		}
		defer f.Close()
		in, shown = f, name
	}
	all, err = io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("cannot read %s: %w", holds, err)
	}
	if len(all) > maxFile {
		return nil, "", fmt.Errorf("%s is larger than %d MiB: check that it is the right file", shown, maxFile>>20)
	}
	return all, shown, nil
}

// manifestFlag adds -m for the file of a manifest. The default is ./mariposa.yaml.
func manifestFlag(cmd *cobra.Command, file *string) {
	documentFlag(cmd, file, "manifest")
	cmd.Flags().Lookup("manifest").Usage += "; default ./" + manifestName
}

// documentFlag adds -m for the file of a document.
func documentFlag(cmd *cobra.Command, file *string, holds string) {
	cmd.Flags().StringVarP(file, "manifest", "m", "", holds+" file; - reads standard input")
	if err := cmd.MarkFlagFilename("manifest", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is defined above
	}
}

var errTwice = errors.New("standard input can be read only once: give one of the two as a file")
