package cli

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) volumeCommand() *cobra.Command {
	return a.group("volume", "Show, attach and delete volumes", a.volumeList(), a.volumeShow(), a.volumeAttach(), a.volumeRemove())
}

func (a *app) volumeList() *cobra.Command {
	var f client.VolumeFilter
	cmd := a.ofProjects(&cobra.Command{
		Use: "list", Short: "List volumes",
		Long: "List volumes. Volumes of deleted projects belong to the organization: -A includes them, and\n-o ORG -A lists all volumes of an organization.",
	}, func(ctx context.Context, c *client.Client, project string) error {
		f.Project = project
		all, err := c.AllVolumes(ctx, f)
		return show(a, all, err, func() { a.printVolumes(all.Volumes) })
	})
	cmd.Flags().StringVar(&f.Service, "service", "", "only volumes of this service")
	cmd.Flags().StringVar(&f.Node, "node", "", "only volumes on this node")
	complete(cmd, "service", a.every(serviceNames))
	complete(cmd, "node", a.every(nodeNames))
	return cmd
}

func (a *app) printVolumes(all []contract.Volume) {
	t := newTable("VOLUME", "PROJECT", "STATE", "NODE", "SIZE?", "USED BY?", "AGE", "ID", "REASON?").ifEmpty("no volumes").sparing("AGE", "SIZE", "USED BY", "ID")
	for _, v := range all {
		t.add(cell{slotted(v), bold}, text(VolumeProject(v)), volumeState(v.State), text(dashIfEmpty(v.NodeName)), text(roomOf(v.Size)), text(dashIfEmpty(v.InstanceName)),
			text(a.age(v.Created)), text(v.ID), text(a.suggest(v.ProjectName, v.OrganizationName, v.Reason)))
	}
	a.printTable(t)
}

// VolumeName returns the display name of a volume.
func VolumeName(v contract.Volume) string { return slotted(v) }

// VolumeProject returns the name of the project of a volume, and whether that is gone.
func VolumeProject(v contract.Volume) string {
	project := dashIfEmpty(v.ProjectName)
	if v.Project == "" {
		project += " (gone)"
	}
	return project
}

// slotted returns the display name of a volume: db.1:data, or shared:data.
func slotted(v contract.Volume) string {
	if v.Shared {
		return "shared:" + v.Name
	}
	return v.Slot + ":" + v.Name
}

func roomOf(size int64) string {
	if size == 0 {
		return "-"
	}
	return sizeOfBytes(size)
}

// volumeState colors a state like the similar state of an instance.
func volumeState(state string) cell {
	like := map[string]mariposa.State{
		"made": mariposa.StateRunning, "pending": mariposa.StateProvisioning, "deleting": mariposa.StateStopping, "unknown": mariposa.StateUnknown,
	}
	c := word(like[state])
	c.text = state
	return c
}

// onVolume creates a command for one volume.
func (a *app) onVolume(use, short string, run func(ctx context.Context, c *client.Client, id string) error) *cobra.Command {
	return a.onOne(&cobra.Command{
		Use: use + " VOLUME", Short: short, ValidArgsFunction: a.wordsFrom(volumeNames),
		Long: short + ".\n\nName a volume by its slot and its name in the manifest (db.1:data), a shared one by its name\n(shared:data), or any by the beginning of its id.",
	}, a.volumeRef, "volume list", run)
}

var aSlotsVolume = regexp.MustCompile(`^(?:([a-z0-9-]+)\.[0-9]+|shared):[a-z0-9-]+$`)

// volumeRef resolves the name of a volume to one that the server knows.
func (a *app) volumeRef(ctx context.Context, c *client.Client, word string) (string, error) {
	slot := aSlotsVolume.FindStringSubmatch(word)
	if slot == nil {
		return word, nil
	}
	project, err := a.anyProject(false)
	if err != nil {
		return "", err
	}
	var found []candidate
	for v, err := range c.Volumes(ctx, client.VolumeFilter{Project: project, Service: slot[1]}) {
		if err != nil {
			return "", err
		}
		if slotted(v) == word && v.Goal == mariposa.GoalKept {
			found = append(found, candidate{v.ID, v.ProjectName + "/" + word})
		}
	}
	return a.pick(found, fmt.Sprintf("volume %q", word), "volume list")
}

func (a *app) volumeShow() *cobra.Command {
	return a.onVolume("show", "Show a volume", func(ctx context.Context, c *client.Client, id string) error {
		v, err := c.Volume(ctx, id)
		return show(a, v, err, func() {
			a.facts("volume", cell{slotted(*v), bold}, "id", v.ID, "organization", v.OrganizationName, "project", v.ProjectName, "service", v.ServiceName, "slot", v.Slot,
				"state", volumeState(v.State), "goal", string(v.Goal), "reason", a.suggest(v.ProjectName, v.OrganizationName, v.Reason), "node", v.NodeName, "path", v.Path, "size", roomOf(v.Size),
				"compute type", string(v.ComputeType), "used by", v.InstanceName, "created", a.stamp(v.Created))
		})
	})
}

func (a *app) volumeRemove() *cobra.Command {
	var sure bool
	cmd := a.onVolume("rm", "Delete a volume and its data", func(ctx context.Context, c *client.Client, id string) error {
		v, err := c.Volume(ctx, id)
		if err != nil {
			return err
		}
		if err := a.confirm(ctx, fmt.Sprintf("permanently delete volume %s of %s and all data in it?", slotted(*v), v.ProjectName), sure); err != nil {
			return err
		}
		done, err := c.DeleteVolume(ctx, v.ID)
		if err != nil {
			return err
		}
		return changed(a, done, nil, "volume %s is deleted: %s", slotted(*v), done.Reason)
	})
	cmd.Long += "\n\nYou cannot delete a volume that an instance uses or is about to use. The node deletes the\ndata as soon as it can be reached."
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func (a *app) volumeAttach() *cobra.Command {
	var as string
	cmd := a.onOne(&cobra.Command{
		Use: "attach VOLUME", Short: "Attach a volume of a deleted project to another project", ValidArgsFunction: a.wordsFrom(leftVolumeNames),
		Long: "Attach a volume of a deleted project to the project (-j PROJECT), with its data.\n\n" +
			"Name the volume by its former slot and name (db.1:data), or by the beginning of its id;\n`volume list -A` lists those of deleted projects.\n\n" +
			"By default it gets the same slot and name in the project. The manifest must have a service that\n" +
			"uses a volume of that name, and the slot must not have such a volume yet. So create the project\n" +
			"with scale: 0, attach the volume, and scale up. Its instances start on the volume's node.",
		Example: `  mariposa -j shop volume attach db.1:data
  mariposa -j shop volume attach 0199f3 --as db.2:data`,
	}, a.leftVolumeRef, "volume list -A", func(ctx context.Context, c *client.Client, id string) error {
		project, err := a.anyProject(false)
		if err != nil {
			return err
		}
		if project == "" {
			return withHint(mariposa.Errorf(mariposa.InvalidArgument, "to which project?"), "name it with -j PROJECT")
		}
		to := contract.VolumeAttachment{Project: project}
		if err := readSlotted(as, &to); err != nil {
			return err
		}
		done, err := c.AttachVolume(ctx, id, to)
		if err != nil {
			return err
		}
		return changed(a, done, nil, "volume %s is attached: %s", done.Name, done.Reason)
	})
	cmd.Flags().StringVar(&as, "as", "", "name in the manifest of the project (data), or slot and name (db.1:data)")
	return cmd
}

// readSlotted reads the place of a volume in a project: data, or db.1:data.
func readSlotted(text string, to *contract.VolumeAttachment) error {
	slot, name, both := strings.Cut(text, ":")
	if !both {
		to.Name = text
		return nil
	}
	if !aSlotsVolume.MatchString(text) || slot == "shared" {
		return mariposa.Errorf(mariposa.InvalidArgument, "--as must be the name of a volume, such as data, or a slot and a name, such as db.1:data")
	}
	service, number, _ := strings.Cut(slot, ".") // names of services have no dot
	to.Service, to.Name = service, name
	var err error
	if to.Slot, err = strconv.Atoi(number); err != nil {
		return mariposa.Errorf(mariposa.InvalidArgument, "--as: %s is not the number of a slot", number)
	}
	return nil
}

// leftVolumeRef resolves the former name of a volume of a deleted project to its id.
func (a *app) leftVolumeRef(ctx context.Context, c *client.Client, word string) (string, error) {
	if !aSlotsVolume.MatchString(word) {
		return word, nil
	}
	var found []candidate
	for v, err := range c.Volumes(ctx, client.VolumeFilter{}) {
		if err != nil {
			return "", err
		}
		if slotted(v) == word && v.Project == "" && v.Goal == mariposa.GoalKept {
			found = append(found, candidate{v.ID, v.ProjectName + "/" + word})
		}
	}
	return a.pick(found, fmt.Sprintf("volume %q of a deleted project", word), "volume list -A")
}
