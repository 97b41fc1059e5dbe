# Spark: a guest of 512 bytes, to see a hypervisor at work. spark.img holds its bytes:
#
#     as --32 -o spark.o spark.s && ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o spark.img spark.o
#
# It starts in a fifth of a second without hardware virtualization, needs 2 MiB of memory and nearly no processor time, and
#   - counts its starts in the first two bytes of its disk's second sector, so that a disk tells which guest it belongs to;
#   - writes to the first serial port: "spark: boot NNNN" at its start, and "spark: tick NNNN" each second (hexadecimal numbers);
#   - powers off when somebody presses the ACPI power button, after "spark: power button".
# Its disk must have 504 KiB, or SeaBIOS finds no cylinder to boot from: images/spark.py makes one. Tests compare these lines.

        .set    TIMER, 0x46c            # the BIOS counts timer interrupts here, 18.2 in a second
        .set    TICKS_PER_SECOND, 18
        .set    SECTOR, 0x8000          # where the second sector is read to
        .set    SERIAL, 0x3f8           # data; + 5: line status, of which bit 5 says that a byte can be written
        .set    PM1_STATUS, 0x600       # SeaBIOS puts the ACPI registers here, on the machines pc and q35
        .set    PM1_ENABLE, 0x602
        .set    PM1_CONTROL, 0x604
        .set    POWER_BUTTON, 0x0100    # in status and enable
        .set    SLEEP_S5, 0x2000        # "go to sleep" with the sleep type that QEMU takes for power off

        .code16
        .globl  _start
_start: cli                             # the BIOS jumps here, with the number of the disk in dl
        xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movw    $0x7c00, %sp            # the stack is below this code
        sti
        cld
        movb    %dl, drive

        movw    %ax, SECTOR
        movw    $0x0201, %ax            # read one sector ...
        call    disk
        incw    SECTOR
        movw    $0x0301, %ax            # ... and write it; after an error each start counts as the first
        call    disk
        movw    $boot, %si
        movw    SECTOR, %ax
        call    line

        movw    $PM1_ENABLE, %dx        # only if enabled, the button sets its bit in the status
        movw    $POWER_BUTTON, %ax
        outw    %ax, %dx

wait:   hlt                             # until the next interrupt, which is the timer's
        movw    $PM1_STATUS, %dx
        inw     %dx, %ax
        testw   $POWER_BUTTON, %ax
        jnz     off
        movw    TIMER, %ax
        movw    %ax, %bx
        subw    last, %ax               # right also if the count has wrapped
        cmpw    $TICKS_PER_SECOND, %ax
        jb      wait
        movw    %bx, last
        incw    seconds
        movw    $tick, %si
        movw    seconds, %ax
        call    line
        jmp     wait

off:    movw    $button, %si
        call    text
        call    newline
        movw    $PM1_CONTROL, %dx
        movw    $SLEEP_S5, %ax
        outw    %ax, %dx
stay:   cli                             # a hypervisor without ACPI
        hlt
        jmp     stay

# Read or write (ax) the disk's second sector.
disk:   movw    $SECTOR, %bx
        movw    $2, %cx                 # track 0, sector 2
        xorw    %dx, %dx                # head 0
        movb    drive, %dl
        int     $0x13
        ret

# Write the text at si, the number in ax and a new line.
line:   pushw   %ax
        call    text
        popw    %ax
        movw    $4, %cx
digit:  rolw    $4, %ax
        pushw   %ax
        andb    $15, %al
        addb    $'0', %al
        cmpb    $'9', %al
        jbe     1f
        addb    $'a' - '9' - 1, %al
1:      call    byte
        popw    %ax
        loop    digit
newline: movb   $'\r', %al
        call    byte
        movb    $'\n', %al
# Write the byte in al.
byte:   movb    %al, %ah
        movw    $SERIAL + 5, %dx
1:      inb     %dx, %al
        testb   $0x20, %al
        jz      1b
        movw    $SERIAL, %dx
        movb    %ah, %al
        outb    %al, %dx
        ret

# Write the text at si, which ends with a zero.
text:   lodsb
        orb     %al, %al
        jz      1f
        call    byte
        jmp     text
1:      ret

boot:   .asciz  "spark: boot "
tick:   .asciz  "spark: tick "
button: .asciz  "spark: power button"
drive:  .byte   0
last:   .word   0
seconds: .word  0

        .org    510
        .word   0xaa55                  # what the BIOS boots from ends so
