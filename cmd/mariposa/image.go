package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"mariposa/assembly"
	"mariposa/cli"
	"mariposa/driver/imagestore"
	"mariposa/reason"
)

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Manage the image store of the node on this machine",
		Long: "Manage the image store of the node on this machine: the images of system containers and\nvirtual machines. Containers do not need it; their engine has its own images.\n\n" +
			"Run these commands on the machine of the node, as the user of its agent. --data is the data\ndirectory of the agent or of `mariposa dev`.",
	}
	c.AddCommand(imageImportCommand(), imageListCommand(), imageShowCommand(), imageRemoveCommand())
	return c
}

// imageStore opens the image store of the node whose data directory was selected.
func imageStore(ctx context.Context) (*imagestore.Store, error) {
	dir := cmp.Or(cli.SessionOf(ctx).Data(), cli.DataDir(os.Getenv))
	for _, node := range []string{dir, filepath.Join(dir, "node")} {
		if _, err := os.Stat(filepath.Join(node, "node.json")); err == nil {
			return imagestore.Open(filepath.Join(node, assembly.ImagesDir))
		}
	}
	return nil, fmt.Errorf("no node has its data in %s: start its agent or `mariposa dev` first, or name its data directory with --data", dir)
}

type imageImport struct {
	name, kind, initrd, kernelArgs, sum string
}

func imageImportCommand() *cobra.Command {
	var f imageImport
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Add an image to the image store",
		Long: "Add an image to the image store: a root file system (a tar archive, plain or compressed), a\ndisk (qcow2 or raw), or a kernel. FILE can be - for standard input.\n\n" +
			"The image appears when it is complete and its files are on disk.",
		Example: "  mariposa image import debian-12.tar.xz --name debian:12\n  mariposa image import debian-12.qcow2 --name debian-vm:12 --sha256 4f2…\n  mariposa image import vmlinuz --initrd initrd.img --append console=ttyS0 --name tiny",
		Args:    cli.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	c.Flags().StringVar(&f.name, "name", "", "name of the image, such as debian:12 (required)")
	c.Flags().StringVar(&f.kind, "kind", "", "rootfs, disk or kernel (default: what the file looks like)")
	c.Flags().StringVar(&f.initrd, "initrd", "", "file with the initial RAM disk of a kernel")
	c.Flags().StringVar(&f.kernelArgs, "append", "", "command line of a kernel")
	c.Flags().StringVar(&f.sum, "sha256", "", "checksum that FILE must have")
	return c
}

func (f *imageImport) run(ctx context.Context, path string, stdin io.Reader, stdout, stderr io.Writer) error {
	if f.name == "" {
		return cli.Usage(errors.New("--name is required: services refer to the image by it"))
	}
	if b, err := hex.DecodeString(f.sum); f.sum != "" && (err != nil || len(b) != 32) {
		return cli.Usage(errors.New("--sha256 must have 64 hexadecimal digits"))
	}
	if f.kind != "" && !slices.Contains([]imagestore.Kind{imagestore.Rootfs, imagestore.Disk, imagestore.Kernel}, imagestore.Kind(f.kind)) {
		return cli.Usage(fmt.Errorf("--kind must be rootfs, disk or kernel, not %q", f.kind))
	}
	s, err := imageStore(ctx)
	if err != nil {
		return err
	}
	in, size := stdin, int64(0)
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil {
			size = info.Size()
		}
		in = file
	}
	r, closeAll, err := f.request(in)
	if err != nil {
		return err
	}
	defer closeAll()
	session := cli.SessionOf(ctx)
	if session.Terminal() {
		r.Report = progressLine(stderr, size)
	}
	i, err := s.Import(ctx, r)
	if session.Terminal() {
		fmt.Fprint(stderr, "\r\x1b[K")
	}
	if err != nil {
		return err
	}
	return session.Print(stdout, i, fmt.Sprintf("imported %s (%s, %s, %s)\n", i.Name, i.ID, i.Kind, bytesText(i.Size())))
}

// request describes the image to import. The caller calls closeAll after the import.
func (f *imageImport) request(in io.Reader) (r imagestore.Request, closeAll func(), err error) {
	src := bufio.NewReaderSize(in, 64<<10)
	kind := imagestore.Kind(f.kind)
	if kind == "" {
		head, err := src.Peek(1024)
		if err != nil && !errors.Is(err, io.EOF) {
			return r, nil, err
		}
		if kind = guessKind(head); f.initrd+f.kernelArgs != "" {
			kind = imagestore.Kernel
		}
		if kind == "" {
			return r, nil, cli.Usage(errors.New("it is not clear what the file contains: pass --kind rootfs, disk or kernel"))
		}
	}
	if kind != imagestore.Kernel && f.initrd+f.kernelArgs != "" {
		return r, nil, cli.Usage(fmt.Errorf("--initrd and --append are for kernels, and this is an image of kind %s", kind))
	}
	main := map[imagestore.Kind]string{imagestore.Rootfs: imagestore.RootfsFile, imagestore.Disk: imagestore.DiskFile, imagestore.Kernel: imagestore.KernelFile}[kind]
	r = imagestore.Request{Name: f.name, Kind: kind, Sources: map[string]io.Reader{main: src}, SHA256: f.sum}
	closeAll = func() {}
	if f.initrd != "" {
		file, err := os.Open(f.initrd)
		if err != nil {
			return r, nil, err
		}
		closeAll = func() { _ = file.Close() } // only read
		r.Sources[imagestore.InitrdFile] = file
	}
	if f.kernelArgs != "" {
		r.Options = map[string]string{imagestore.AppendOption: f.kernelArgs}
	}
	return r, closeAll, nil
}

// guessKind returns what a file contains by its first bytes; empty if that is not clear.
func guessKind(head []byte) imagestore.Kind {
	is := func(at int, magic string) bool {
		return len(head) >= at+len(magic) && bytes.Equal(head[at:at+len(magic)], []byte(magic))
	}
	switch {
	case is(0, "QFI\xfb"):
		return imagestore.Disk
	case is(0x202, "HdrS"): // of Linux on x86
		return imagestore.Kernel
	case is(0x1fe, "\x55\xaa"): // the boot sector of a raw disk; kernels have one, too
		return imagestore.Disk
	case is(257, "ustar"), is(0, "\x1f\x8b"), is(0, "\xfd7zXZ\x00"), is(0, "BZh"), is(0, "\x28\xb5\x2f\xfd"):
		return imagestore.Rootfs
	}
	return ""
}

// progressLine returns a function that shows how much of an image was read.
func progressLine(to io.Writer, size int64) func(int64) {
	var last time.Time
	return func(done int64) {
		if time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
		text := bytesText(done)
		if size > 0 {
			text += fmt.Sprintf(" (%d %%)", min(100, 100*done/size))
		}
		fmt.Fprintf(to, "\r\x1b[Kreading: %s", text)
	}
}

func imageListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the images in the image store",
		Args:    cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := imageStore(cmd.Context())
			if err != nil {
				return err
			}
			all, err := s.List()
			if err != nil {
				return err
			}
			var text strings.Builder
			t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NAME\tKIND\tSIZE\tUSED BY\tIMPORTED\tID")
			docs := []imageDocument{}
			for _, i := range all {
				d, err := describeImage(s, i)
				if err != nil {
					return err
				}
				docs = append(docs, d)
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.Kind, bytesText(i.Size()), reason.Many(len(d.Instances), "instance"), i.Created.Format(time.DateTime), i.ID)
			}
			_ = t.Flush() // never fails
			if len(all) == 0 {
				text.Reset()
				text.WriteString("the image store is empty: add an image with `mariposa image import`\n")
			}
			return cli.SessionOf(cmd.Context()).Print(cmd.OutOrStdout(), map[string]any{"images": docs}, text.String())
		},
	}
}

// imageDocument is what the commands print as JSON.
type imageDocument struct {
	*imagestore.Image
	Size      int64    `json:"size"`
	Instances []string `json:"instances"`
}

func describeImage(s *imagestore.Store, i *imagestore.Image) (imageDocument, error) {
	users, err := s.Users(i)
	return imageDocument{i, i.Size(), append([]string{}, users...)}, err
}

func imageShowCommand() *cobra.Command {
	var verify bool
	c := &cobra.Command{
		Use:   "show IMAGE",
		Short: "Show an image, by its name or id",
		Args:  cli.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := imageStore(cmd.Context())
			if err != nil {
				return err
			}
			i, err := s.Find(args[0])
			if err != nil {
				return err
			}
			if verify {
				if err := s.Verify(cmd.Context(), i); err != nil {
					return err
				}
			}
			d, err := describeImage(s, i)
			if err != nil {
				return err
			}
			return cli.SessionOf(cmd.Context()).Print(cmd.OutOrStdout(), d, d.text(verify))
		},
	}
	c.Flags().BoolVar(&verify, "verify", false, "also read the files, and compare them with their checksums")
	return c
}

func (d *imageDocument) text(verified bool) string {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "image:\t%s\nid:\t%s\nkind:\t%s\nimported:\t%s\nused by:\t%s\n", d.Name, d.ID, d.Kind, d.Created.Format(time.RFC3339), cmp.Or(strings.Join(d.Instances, ", "), "no instance"))
	for _, name := range []string{imagestore.FormatOption, imagestore.AppendOption} {
		if value := d.Options[name]; value != "" {
			fmt.Fprintf(t, "%s:\t%s\n", name, value)
		}
	}
	for _, file := range d.Files {
		fmt.Fprintf(t, "%s:\t%s, sha256 %s\n", file.Name, bytesText(file.Size), file.SHA256)
	}
	if verified {
		fmt.Fprintf(t, "verified:\tall files are as they were imported\n")
	}
	_ = t.Flush() // never fails
	return text.String()
}

func imageRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove"},
		Short:   "Remove images from the image store",
		Long:    "Remove images from the image store, by name or id. An image from which instances were created\nis kept, until they are removed.",
		Args:    cli.Args(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := imageStore(cmd.Context())
			if err != nil {
				return err
			}
			for _, ref := range args {
				i, err := s.Remove(ref)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "removed %s (%s)\n", i.Name, i.ID)
			}
			return nil
		},
	}
}
