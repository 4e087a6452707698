/*
 * The smallest guest: it starts in a tenth of a second of processor time. It is a multiboot kernel of
 * which QEMU is given the flat binary.
 *
 * It writes its command line to the first serial port, from the first blank to ^; | ends a line.
 * Then it waits for the power button and turns the machine off, unless an s follows ^. An r on the
 * serial port resets the machine.
 *
 * After a change: as --32 tiny.S -o tiny.o && objcopy -O binary -j .text tiny.o tiny.bin
 */
	.code32
	.set MAGIC, 0x1BADB002
	.set FLAGS, 0x00010000
	.set BASE, 0x100000
start:
	.long MAGIC, FLAGS, -(MAGIC + FLAGS)
	.long BASE, BASE, 0, 0, BASE + (entry - start)
entry:
	mov $0x180000, %esp
	mov 16(%ebx), %esi
skip:	lodsb
	test %al, %al
	jz idle
	cmp $' ', %al
	jne skip
print:	lodsb
	test %al, %al
	jz idle
	cmp $'^', %al
	je idle
	cmp $'|', %al
	jne put
	mov $'\r', %al
	call send
	mov $'\n', %al
put:	call send
	jmp print
send:	mov %al, %cl
	mov $0x3fd, %dx
ready:	in %dx, %al
	test $0x20, %al
	jz ready
	mov %cl, %al
	mov $0x3f8, %dx
	out %al, %dx
	ret
idle:	mov (%esi), %bh
	/* interrupt 8 is that of the timer */
	mov $BASE + (handler - start), %eax
	mov $BASE + (idt - start) + 8 * 8, %edi
	mov %ax, (%edi)
	mov %cs, %cx
	mov %cx, 2(%edi)
	movw $0x8e00, 4(%edi)
	shr $16, %eax
	mov %ax, 6(%edi)
	lidt BASE + (idtr - start)
	mov $0xfe, %al
	out %al, $0x21
	mov $0xff, %al
	out %al, $0xa1
	mov $0x602, %dx
	mov $0x100, %ax
	out %ax, %dx
wait:	sti
	hlt
	mov $0x3fd, %dx		/* an r resets the machine */
	in %dx, %al
	test $1, %al
	jz button
	mov $0x3f8, %dx
	in %dx, %al
	cmp $'r', %al
	jne button
	mov $0xcf9, %dx
	mov $6, %al
	out %al, %dx
button:	cmp $'s', %bh
	je wait
	mov $0x600, %dx
	in %dx, %ax
	test $1, %ah
	jz wait
	mov $0x604, %dx
	mov $0x2000, %ax
	out %ax, %dx
	jmp wait
handler:
	push %eax
	mov $0x20, %al
	out %al, $0x20
	pop %eax
	iret
idtr:	.word 9 * 8 - 1
	.long BASE + (idt - start)
	.balign 8
idt:	.fill 9 * 8
