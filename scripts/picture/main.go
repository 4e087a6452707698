// Command picture runs a few commands against a real Mariposa in its own terminal and
// writes the screen as an SVG file. Run it with `make picture`.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// scenes are the commands of the picture. Commands that are not shown prepare the next
// one.
var scenes = []struct {
	command string
	hidden  bool
}{
	{command: "mariposa project create hello --wait"},
	{command: "mariposa -j hello ps"},
	{command: "sed -i 's/hello, web/hello, wbe/' mariposa.yaml   # a typo"},
	{command: "mariposa project update hello --wait --yes"},
	{command: "mariposa -j hello state"},
}

const (
	width   = 112             // of the terminal, in characters
	timeout = 2 * time.Minute // for the whole recording
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("picture: ")
	if len(os.Args) != 3 {
		log.Fatal("usage: picture BINARIES-DIRECTORY FILE.svg")
	}
	bin, err := filepath.Abs(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	lines, err := record(bin)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[2], []byte(draw(lines)), 0o644); err != nil { //nolint:gosec // everybody may read the picture
		log.Fatal(err)
	}
}

// record runs the scenes in a temporary directory and returns the lines on the screen.
func record(bin string) (lines []line, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	folder, err := os.MkdirTemp("", "mariposa-picture-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	manifest, err := os.ReadFile("examples/hello/mariposa.yaml")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, "mariposa.yaml"), manifest, 0o600); err != nil {
		return nil, err
	}
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "MARIPOSA_DATA="+filepath.Join(folder, "data"), "TERM=xterm-256color",
		"MARIPOSA_URL=", "MARIPOSA_TOKEN=", "MARIPOSA_PROJECT=", "HOME="+folder, "XDG_CONFIG_HOME="+folder)
	stop, err := serve(ctx, folder, env)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, s := range scenes {
		shown, err := perform(ctx, folder, env, s.command)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; output:\n%s", s.command, err, plain(shown))
		}
		if !s.hidden {
			lines = append(lines, prompt(s.command))
			lines = append(append(lines, shown...), nil)
		}
	}
	return lines[:len(lines)-1], nil
}

// serve starts a server and waits until it answers. The returned function stops it and
// removes everything that it runs.
func serve(ctx context.Context, folder string, env []string) (stop func() error, err error) {
	command := func(ctx context.Context, arguments ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "mariposa", arguments...)
		cmd.Dir, cmd.Env = folder, env
		for _, v := range env {
			if path, ok := strings.CutPrefix(v, "PATH="); ok {
				cmd.Path = filepath.Join(strings.Split(path, ":")[0], "mariposa")
				cmd.Err = nil
			}
		}
		return cmd
	}
	server := command(ctx, "dev", "--listen", "127.0.0.1:0")
	if err := server.Start(); err != nil {
		return nil, err
	}
	stop = func() error {
		_ = server.Process.Signal(os.Interrupt)
		_ = server.Wait()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		out, err := command(ctx, "dev", "--listen", "127.0.0.1:0", "--down", "--yes").CombinedOutput()
		if err != nil {
			return fmt.Errorf("stop the server: %w: %s", err, out)
		}
		return nil
	}
	for command(ctx, "project", "list").Run() != nil {
		select {
		case <-ctx.Done():
			return nil, errors.Join(errors.New("the server does not answer"), stop())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return stop, nil
}
