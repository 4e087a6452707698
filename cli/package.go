package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) packageCommand() *cobra.Command {
	return a.group("package", "Manage packages, the named sizes that manifests can use",
		a.packageList(), a.packageSet(), a.packageRemove())
}

func (a *app) packageList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List packages", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Packages(ctx)
			return show(a, all, err, func() {
				t := newTable("NAME", "FAMILY?", "MEMORY?", "CPU?", "DISK?").ifEmpty("no packages yet: create one with `mariposa package set NAME --memory 512m --cpu 0.5`")
				for _, p := range all.Packages {
					disk := "-"
					if p.Disk > 0 {
						disk = sizeOfBytes(p.Disk)
					}
					t.add(cell{p.Name, bold}, text(dashIfEmpty(p.Family)), text(sizeOfBytes(p.Memory)), text(fmt.Sprintf("%g", p.CPU)), text(disk))
				}
				a.printTable(t)
			})
		})
}

func (a *app) packageSet() *cobra.Command {
	var p contract.Package
	var memory, cpu, disk string
	cmd := a.withClient(&cobra.Command{Use: "set NAME --memory SIZE --cpu CORES", Short: "Create a package or change its size", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(packageNames)},
		func(ctx context.Context, c *client.Client, args []string) (err error) {
			p.Name = args[0]
			if memory == "" || cpu == "" {
				return Usage(errors.New("no size given: use --memory and --cpu"))
			}
			if p.Memory, err = readSize("memory", memory); err != nil {
				return Usage(err)
			}
			if p.CPU, err = readCores(cpu); err != nil {
				return Usage(err)
			}
			if disk != "" {
				if p.Disk, err = readSize("disk", disk); err != nil {
					return Usage(err)
				}
			}
			done, err := c.PutPackage(ctx, p)
			return changed(a, done, err, "package %s now has %s of memory and %g cpu", p.Name, sizeOfBytes(p.Memory), p.CPU)
		})
	f := cmd.Flags()
	f.StringVar(&memory, "memory", "", "memory of each instance, such as 512m")
	f.StringVar(&cpu, "cpu", "", "CPU cores of each instance, such as 0.5")
	f.StringVar(&disk, "disk", "", "disk of each instance, such as 10g")
	f.StringVar(&p.Family, "family", "", "name of the group that the package belongs to")
	return cmd
}

func (a *app) packageRemove() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "rm NAME", Short: "Delete a package", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(packageNames)},
		func(ctx context.Context, c *client.Client, args []string) error {
			done, err := c.DeletePackage(ctx, args[0])
			return changed(a, done, notFound(err, "mariposa package list"), "package %s is deleted", args[0])
		})
}

func (a *app) keyCommand() *cobra.Command {
	return a.group("key", "Change the key that encrypts the secrets of the installation", a.withClient(&cobra.Command{
		Use: "rotate", Short: "Replace the key with a new one", Args: argsBetween(0, 0),
		Long: "Create a new key, re-encrypt with it everything that the old key encrypts, and delete the\nold key.\n\n" +
			"You can do this while the system is running; nothing restarts. If the command is\ninterrupted, run it again.",
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		done, err := c.RotateKey(ctx)
		return show(a, done, err, func() {
			a.say("key %s is in use: %s with it", done.Key, plural(done.Rewrapped, "inner key is encrypted", "inner keys are encrypted"))
			a.note("keep a backup of the key file, separate from backups of the store: without it, secrets cannot be read")
		})
	}))
}
