package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/cli"
	"mariposa/reason"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/backup"
	"mariposa/store/postgres"
	"mariposa/store/sqlite"
)

type restoreFlags struct {
	store, keyFile string
	force, check   bool
}

func restoreCommand() *cobra.Command {
	var f restoreFlags
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a store from a backup",
		Long: "Restore a store from a backup (- for standard input): the store of a data directory (--data)\nor another one (--store). The store must be empty; --force replaces what it contains. If the\nrestore fails or is killed, the store is as it was before.\n\n" +
			"The key file of the installation that made the backup must be in place first, or named with\n--key-file. With SQLite, the server must not be running. With PostgreSQL, --force also\nreplaces the store of running servers: they notice and read it again.\n\n" +
			"Nodes keep what they run. Instances that the restored state does not know are quarantined:\nsee `mariposa node list`, then `mariposa node adopt` or `mariposa node purge`.",
		Example: "  mariposa restore mariposa.backup --check\n  mariposa restore mariposa.backup --data /var/lib/mariposa --force\n  MARIPOSA_STORE=postgres://… mariposa restore mariposa.backup --key-file /etc/mariposa/secret.key",
		Args:    cli.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := restoreRun{restoreFlags: f, session: cli.SessionOf(cmd.Context()), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr()}
			return r.run(cmd.Context(), args[0], cmd.InOrStdin())
		},
	}
	c.Flags().StringVar(&f.store, "store", "", "store to restore into: sqlite:PATH or postgres://…; use MARIPOSA_STORE if it contains a password")
	c.Flags().StringVar(&f.keyFile, "key-file", "", "key file of the installation that made the backup (default secret.key in the data directory)")
	c.Flags().BoolVarP(&f.force, "force", "f", false, "replace what the store contains")
	c.Flags().BoolVar(&f.check, "check", false, "only check the backup and show what it contains")
	return c
}

// restoreRun is one run of `mariposa restore`.
type restoreRun struct {
	restoreFlags
	session        cli.Session
	stdout, stderr io.Writer

	header  backup.Header
	summary backup.Summary
	size    int64
	kinds   map[string]int64 // objects by kind
}

// restoreResult is what the command prints.
type restoreResult struct {
	backup.Header
	Objects  map[string]int64 `json:"objects"`
	Changes  int64            `json:"commits"`
	Audit    int64            `json:"audit_entries"`
	Bytes    int64            `json:"bytes"`
	Restored bool             `json:"restored"`
	Revision int64            `json:"restored_revision,omitempty"`
}

func (r *restoreRun) run(ctx context.Context, path string, stdin io.Reader) error {
	if err := r.complete(); err != nil {
		return err
	}
	file, err := openBackup(path, stdin)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := r.verify(ctx, file); err != nil {
		return err
	}
	if r.check {
		return r.print(restoreResult{}, "")
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cannot read the backup again: %w", err)
	}
	revision, err := r.restore(ctx, file)
	if err != nil {
		return r.explain(err)
	}
	return r.print(restoreResult{Restored: true, Revision: revision}, fmt.Sprintf(
		"restored; the store continues at revision %d\n%s Nodes keep what they run; what the restored state does not know is in quarantine:\nsee `mariposa node list`, then `mariposa node adopt NODE` or `mariposa node purge NODE`.\n", revision, r.nextStep()))
}

// nextStep says what to do about servers. Those of a PostgreSQL store may be running.
func (r *restoreRun) nextStep() string {
	if isPostgres(r.store) {
		return "Servers that are running read the store again by themselves; if none is, start one."
	}
	return "Start the server."
}

// complete completes the flags: where to restore into, and the key file.
func (r *restoreRun) complete() error {
	data, dir := r.session.Data(), ""
	switch {
	case r.store != "" && isPostgres(r.store):
		dir = cli.DataDir(os.Getenv)
	case r.store != "":
		file, ok := strings.CutPrefix(r.store, "sqlite:")
		if !ok || file == "" {
			return cli.Usage(fmt.Errorf("--store must be sqlite:PATH or postgres://…, not %q", masked(r.store)))
		}
		dir = filepath.Dir(file)
	case data != "":
		dir, r.store = data, "sqlite:"+filepath.Join(data, databaseFile)
	case !r.check:
		return cli.Usage(errors.New("name the store to restore into, with --data DIR or --store"))
	}
	if r.keyFile == "" && !r.check {
		r.keyFile = filepath.Join(dir, "secret.key")
	}
	return nil
}

// openBackup opens a backup that is read twice. Standard input is copied first, to a file
// that is removed at once.
func openBackup(path string, stdin io.Reader) (*os.File, error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read the backup: %w", err)
		}
		return f, nil
	}
	f, err := os.CreateTemp("", "mariposa-restore-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name()) // the open file stays
	if _, err := io.Copy(f, stdin); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the backup: %w", err), f.Close())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// verify reads the whole backup before anything is changed, and checks that the key file
// opens every key in it.
func (r *restoreRun) verify(ctx context.Context, file io.Reader) (err error) {
	progress := newProgress(r.stderr, r.session.Terminal(), "checking")
	defer progress.end()
	var ring *seal.Ring
	if r.keyFile != "" {
		if ring, err = seal.ReadRing(r.keyFile); err != nil {
			return fmt.Errorf("the secrets in the backup cannot be decrypted: %w; --key-file names another one", err)
		}
	}
	r.kinds = map[string]int64{}
	counted := &countingReader{from: file}
	r.header, r.summary, r.size, err = backup.Verify(counted, func(it *store.DumpItem) error {
		progress.add(counted.n)
		if it.Object == nil {
			return nil
		}
		r.kinds[string(it.Object.Kind)]++
		if it.Object.Kind != mariposa.KindKey || ring == nil {
			return nil
		}
		return checkKey(ctx, ring, it.Object)
	})
	return err
}

// checkKey fails if a key of a backup cannot be opened.
func checkKey(ctx context.Context, ring *seal.Ring, o *store.EncodedObject) error {
	record, err := backup.Record(o)
	if err != nil {
		return err
	}
	if _, err := seal.NewVault(ring, oneRecord(record)).Box(ctx, o.ID); err != nil {
		return fmt.Errorf("the key file does not belong to this backup: %w", err)
	}
	return nil
}

// oneRecord is a source with one record.
type oneRecord store.Record

func (r oneRecord) Get(context.Context, mariposa.Kind, string) (store.Record, error) {
	return store.Record(r), nil
}

func (r *restoreRun) restore(ctx context.Context, file io.Reader) (revision int64, err error) {
	items, err := backup.NewReader(file)
	if err != nil {
		return 0, err
	}
	defer items.Close()
	progress := newProgress(r.stderr, r.session.Terminal(), "restoring")
	defer progress.end()
	from, err := backup.Audited(&shownSource{items, progress}, mariposa.Audit{
		Actor: "operator", ActorName: operator(), Action: "store.restore", Outcome: mariposa.AuditDone,
		Reason: fmt.Sprintf("restored the backup of %s at revision %d", r.header.Time.Format(time.RFC3339), r.header.Revision),
	}, time.Now())
	if err != nil {
		return 0, err
	}
	if isPostgres(r.store) {
		return postgres.Restore(ctx, r.store, from, r.force)
	}
	return sqlite.Restore(ctx, strings.TrimPrefix(r.store, "sqlite:"), from, r.force)
}

// shownSource shows how much was restored.
type shownSource struct {
	*backup.Reader
	progress *progress
}

func (s *shownSource) Next() (*store.DumpItem, error) {
	it, err := s.Reader.Next()
	s.progress.add(s.Size())
	return it, err
}

// explain says what can be done about a restore that was refused.
func (r *restoreRun) explain(err error) error {
	switch {
	case errors.Is(err, store.ErrNotEmpty):
		return fmt.Errorf("%w: choose an empty one, or replace everything in it with --force", err)
	case errors.Is(err, store.ErrInUse):
		return fmt.Errorf("%w: stop them first, or replace their state with --force", err)
	}
	return err
}

func (r *restoreRun) print(done restoreResult, note string) error {
	h := &r.header
	done.Header, done.Objects, done.Changes, done.Audit, done.Bytes = *h, r.kinds, r.summary.Chunks, r.summary.Audit, r.size
	var text strings.Builder
	fmt.Fprintf(&text, "made:          %s by release %s\ninstallation:  %s\nrevision:      %d\nsize:          %s\ncontains:      %s\n%s",
		h.Time.Format(time.RFC3339), h.Release, h.Cluster, h.Revision, bytesText(r.size), r.contents(), note)
	return r.session.Print(r.stdout, done, text.String())
}

// shownKinds are the objects that users know, in the order in which they are shown.
var shownKinds = []mariposa.Kind{mariposa.KindProject, mariposa.KindService, mariposa.KindInstance, mariposa.KindVolume, mariposa.KindNetwork, mariposa.KindNode, mariposa.KindOrg, mariposa.KindUser, mariposa.KindTask}

// contents says what a backup contains.
func (r *restoreRun) contents() string {
	var all []string
	rest := r.summary.Objects
	for _, k := range shownKinds {
		if n := r.kinds[string(k)]; n > 0 {
			all = append(all, reason.Many(int(n), string(k)))
			rest -= n
		}
	}
	all = append(all, reason.Many(int(r.summary.Audit), "audit record"))
	if rest > 0 {
		all = append(all, reason.Many(int(rest), "other object"))
	}
	return strings.Join(all, ", ") + "; the history of " + reason.Many(int(r.summary.Chunks), "change")
}
