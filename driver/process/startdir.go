package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// startDir returns the directory in which the command of an instance starts, and commands
// that people run in it: the one that its workload names, otherwise its working
// directory. A directory at or below the path of a volume is in that volume.
func startDir(i driver.Instance, dir string) string {
	want := i.Workload.WorkingDir
	if want == "" {
		return filepath.Join(dir, workDir)
	}
	for _, v := range i.Volumes {
		if contains(v.Path, want) {
			return filepath.Join(v.Source, strings.TrimPrefix(want, v.Path))
		}
	}
	return want
}

// checkStartDir explains why a command cannot start in a directory. It is called where
// the command will run: with the instance's file system view and permissions.
func checkStartDir(dir string, isolated bool) error {
	_, err := os.Stat(dir + "/.") // entering it requires the right to search it
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT) && isolated:
		return fmt.Errorf("cannot start in working_dir %s: it does not exist, or the instance cannot see it; put it below /opt or /srv, or start the node's agent with --process-path", dir)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("cannot start in working_dir %s: no such directory", dir)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("cannot start in working_dir %s: it is not a directory", dir)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("cannot start in working_dir %s: the user that it runs as may not enter it; open it to other users (chmod o+rx)", dir)
	}
	return fmt.Errorf("cannot start in working_dir %s: %w", dir, errors.Unwrap(err))
}
