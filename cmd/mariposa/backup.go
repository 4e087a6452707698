package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"mariposa/cli"
	"mariposa/reason"
	"mariposa/store"
	"mariposa/store/backup"
	"mariposa/store/postgres"
	"mariposa/store/sqlite"
)

const databaseFile = "mariposa.db" // in the data directory of `mariposa dev`

func backupCommand() *cobra.Command {
	var where string
	var force bool
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the whole store to a file, while the server runs",
		Long: "Copy the whole store to a file (- for standard output): one consistent state, while the\nserver keeps working. `mariposa restore` restores it, into SQLite or PostgreSQL.\nThe file appears when it is complete. An existing file is replaced only with --force.\n\n" +
			"The backup is made by the server, which requires an installation admin. With --store, or\nwith --data if no server is running there, the store is read directly.\n\n" +
			"Secrets in the backup are encrypted. The key file that decrypts them (secret.key in the\nserver's data directory, or --key-file) is NOT part of it: keep a copy of it elsewhere.",
		Example: "  mariposa backup /var/backups/mariposa.backup\n  mariposa backup - | ssh vault 'cat > mariposa.backup'\n  mariposa backup mariposa.backup --store sqlite:/var/lib/mariposa/mariposa.db",
		Args:    cli.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b := backupRun{session: cli.SessionOf(cmd.Context()), where: where, force: force, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr()}
			return b.run(cmd.Context(), args[0])
		},
	}
	c.Flags().StringVar(&where, "store", "", "read this store directly: sqlite:PATH (its server must not be running) or postgres://…; use MARIPOSA_STORE if it contains a password")
	c.Flags().BoolVarP(&force, "force", "f", false, "replace the file if it exists")
	return c
}

// backupRun is one run of `mariposa backup`.
type backupRun struct {
	session        cli.Session
	where          string
	force          bool // replace an existing file
	stdout, stderr io.Writer
}

// backupResult is what the command prints.
type backupResult struct {
	File     string    `json:"file"`
	Objects  int64     `json:"objects"`
	Revision int64     `json:"revision"`
	Time     time.Time `json:"time"`
	Bytes    int64     `json:"bytes"`
	SHA256   string    `json:"sha256"`
}

func (b *backupRun) run(ctx context.Context, path string) error {
	if f, ok := b.stdout.(*os.File); ok && path == "-" && isTerminal(f) {
		return cli.Usage(errors.New("a backup is not text: name a file, or send standard output to a program"))
	}
	if err := b.checkFile(path); err != nil {
		return err
	}
	from, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer from.Close()
	if path == "-" {
		done, err := b.copy(from, b.stdout)
		if err == nil {
			b.say(done, "standard output")
		}
		return err
	}
	var done *backupResult
	err = writeWhole(path, b.force, func(to io.Writer) (err error) {
		done, err = b.copy(from, to)
		return err
	})
	if err != nil {
		return err
	}
	done.File = path
	if err := b.session.Print(b.stdout, done, path+"\n"); err != nil {
		return err
	}
	b.say(done, path)
	return nil
}

// checkFile refuses to replace a file that is not empty, such as an earlier backup. If a
// file cannot be written, that is said when it is.
func (b *backupRun) checkFile(path string) error {
	info, _ := os.Stat(path)
	switch {
	case path == "-" || info == nil:
		return nil
	case !info.Mode().IsRegular():
		return cli.Usage(fmt.Errorf("%s is not a regular file: name the file to write", path))
	case info.Size() > 0 && !b.force:
		return existsError(path)
	}
	return nil
}

func existsError(path string) error {
	return fmt.Errorf("%s exists already: choose another name, or replace it with --force", path)
}

func (b *backupRun) say(done *backupResult, where string) {
	fmt.Fprintf(b.stderr, "backed up %s at revision %d to %s (%s)\n", reason.Many(int(done.Objects), "object"), done.Revision, where, bytesText(done.Bytes))
	fmt.Fprintln(b.stderr, "The key file is not part of the backup, and its secrets cannot be decrypted without it: keep a copy of the key file elsewhere.")
}

// open returns the backup as it is made: by the server, or from a store that was given or
// whose server is not running.
func (b *backupRun) open(ctx context.Context) (io.ReadCloser, error) {
	if b.where != "" {
		return readStore(ctx, b.where)
	}
	c, err := b.session.Client()
	if err != nil {
		return nil, err
	}
	from, err := c.Backup(ctx)
	if dir, local := b.session.Local(); local && errors.Is(err, syscall.ECONNREFUSED) {
		path := filepath.Join(dir, databaseFile)
		if _, missing := os.Stat(path); missing == nil {
			fmt.Fprintf(b.stderr, "no server is running in %s: reading its store directly\n", dir)
			return readStore(ctx, "sqlite:"+path)
		}
	}
	return from, err
}

// readStore makes a backup of a store directly.
func readStore(ctx context.Context, where string) (io.ReadCloser, error) {
	dump := func(d store.Dump) error { return postgres.DumpDatabase(ctx, where, d) }
	if !isPostgres(where) {
		path, ok := strings.CutPrefix(where, "sqlite:")
		if !ok || path == "" {
			return nil, cli.Usage(fmt.Errorf("--store must be sqlite:PATH or postgres://…, not %q", masked(where)))
		}
		dump = func(d store.Dump) error { return sqlite.DumpFile(ctx, path, d) }
	}
	out, in := io.Pipe()
	file, err := backup.NewWriter(in, version)
	if err != nil {
		return nil, err
	}
	go func() { // ends with the pipe or the dump
		err := dump(file.Dump())
		if err == nil {
			_, err = file.End()
		}
		_ = in.CloseWithError(err)
	}()
	return out, nil
}

// copy copies a backup, checks that it is complete, and shows the progress.
func (b *backupRun) copy(from io.Reader, to io.Writer) (*backupResult, error) {
	progress := newProgress(b.stderr, b.session.Terminal(), "backing up")
	defer progress.end()
	buffer := bufio.NewWriterSize(to, 256<<10)
	counted := &countingReader{from: io.TeeReader(from, buffer)}
	h, sum, size, err := backup.Verify(counted, func(*store.DumpItem) error {
		progress.add(counted.n)
		return nil
	})
	if err == nil {
		err = buffer.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot back up: %w", err)
	}
	return &backupResult{Objects: sum.Objects, Revision: h.Revision, Time: h.Time, Bytes: size, SHA256: sum.SHA256}, nil
}

// writeWhole writes a file that appears only when it is complete, instead of one that is
// there already if replace is set or that is empty. Only its owner can read it.
func writeWhole(path string, replace bool, write func(io.Writer) error) error {
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the backup: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return fmt.Errorf("another process is writing %s: wait until it has ended", part)
	}
	err = errors.Join(f.Chmod(0o600), f.Truncate(0)) // what a killed backup left
	if err == nil {
		err = write(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if info, found := os.Stat(path); err == nil && !replace && found == nil && info.Size() > 0 {
		err = existsError(path) // it was written meanwhile
	}
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func isPostgres(where string) bool {
	return strings.HasPrefix(where, "postgres://") || strings.HasPrefix(where, "postgresql://")
}

// countingReader counts what was read.
type countingReader struct {
	from io.Reader
	n    int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

// progress shows how far a long command has come: continuously on a terminal, else now
// and then.
type progress struct {
	to       io.Writer
	terminal bool
	doing    string
	items    int
	next     time.Time
	shown    bool
}

func newProgress(to io.Writer, terminal bool, doing string) *progress {
	return &progress{to: to, terminal: terminal, doing: doing, next: time.Now().Add(time.Second)}
}

// add counts an item.
func (p *progress) add(bytes int64) {
	if p.items++; p.items%100 != 0 {
		return
	}
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(10 * time.Second)
	if p.terminal {
		p.next = now.Add(200 * time.Millisecond)
		fmt.Fprint(p.to, "\r\x1b[K")
	}
	fmt.Fprintf(p.to, "%s: %s, %s", p.doing, reason.Many(p.items, "item"), bytesText(bytes))
	if p.shown = true; !p.terminal {
		fmt.Fprintln(p.to)
	}
}

// end leaves the cursor at the beginning of an empty line.
func (p *progress) end() {
	if p.shown && p.terminal {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}

// bytesText formats a number of bytes.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
